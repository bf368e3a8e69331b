/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/cli/args.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- what is shown --- */

static void show_usage(FILE *to, const struct cli_command *c, const char *before)
{
	size_t bytes;

	for (const char *line = c->usage; *line; line += bytes + (line[bytes] == '\n')) {
		bytes = strcspn(line, "\n");
		(void)fprintf(to, "%sscalai %s ", before, c->name);
		(void)fwrite(line, 1, bytes, to);
		(void)fputs("\n", to);
	}
}

static void show_help(const struct cli_command *c)
{
	bool any = false;

	(void)printf("%s.\n\nUsage:\n", c->summary);
	show_usage(stdout, c, "  ");
	for (const struct cli_option *o = c->options; o->name || o->letter; o++) {
		char left[64], letter[4] = {'-', o->letter, o->name ? ',' : 0, 0};

		if (!o->help)
			continue;
		(void)snprintf(left, sizeof(left), "%s%s%s%s%s%s", o->letter ? letter : "",
			       o->letter && o->name ? " " : "", o->name ? "--" : "", o->name ? o->name : "",
			       o->value ? " " : "", o->value ? o->value : "");
		(void)printf("%s  %-24s %s\n", any ? "" : "\nOptions:\n", left, o->help);
		any = true;
	}
	(void)printf("\nExample:\n  %s\n", c->example);
}

int cli_complain(const struct cli_args *args, const char *fmt, ...)
{
	const struct cli_command *c = args->command;
	va_list ap;

	(void)fprintf(stderr, "scalai %s: ", c->name);
	va_start(ap, fmt);
	(void)vfprintf(stderr, fmt, ap);
	va_end(ap);
	(void)fputs(strchr(c->usage, '\n') ? "; usage:\n" : "; usage: ", stderr);
	show_usage(stderr, c, strchr(c->usage, '\n') ? "  " : "");
	return CLI_WRONG_USAGE;
}

/* --- what is given --- */

static bool is_named(const struct cli_option *o, const char *name, size_t bytes)
{
	return (o->name && strlen(o->name) == bytes && memcmp(o->name, name, bytes) == 0) ||
	       (o->letter && bytes == 1 && *name == o->letter);
}

static const struct cli_option *find(const struct cli_command *c, const char *name, size_t bytes, bool by_letter)
{
	for (const struct cli_option *o = c->options; o->name || o->letter; o++)
		if (is_named(o, name, bytes) && (bytes == 1) == by_letter)
			return o;
	return NULL;
}

const char *cli_value(const struct cli_args *args, const char *name)
{
	for (size_t i = args->nr_options; i > 0; i--) {
		const struct cli_given *g = &args->options[i - 1];

		if (g->option && is_named(g->option, name, strlen(name)))
			return g->value ? g->value : "";
	}
	return NULL;
}

static void give(struct cli_args *args, const struct cli_option *option, const char *name, const char *value)
{
	args->options[args->nr_options++] = (struct cli_given){option, name, value};
}

/* Reads --NAME, --NAME VALUE or --NAME=VALUE; *word moves on if the next word is the value. */
static int read_long(struct cli_args *args, char ***word)
{
	char *name = **word + 2, *equals = strchr(name, '=');
	size_t bytes = equals ? (size_t)(equals - name) : strlen(name);
	const struct cli_option *o = find(args->command, name, bytes, false);

	if (bytes == 0 || (!o && !args->command->other_options))
		return cli_complain(args, "unknown option '--%.*s'", (int)bytes, name);
	if (equals && o && !o->value && !args->command->other_options)
		return cli_complain(args, "option '--%s' takes no value", o->name);
	if (!equals && (!o || o->value)) {
		if (!(*word)[1])
			return cli_complain(args, "option '--%s' needs a value", name);
		equals = *++*word;
	} else if (equals) {
		*equals++ = 0;
	}
	give(args, o, name, equals);
	return 0;
}

/* Reads options of one letter: -fd, -o VALUE or -oVALUE. */
static int read_letters(struct cli_args *args, char ***word)
{
	for (char *at = **word + 1; *at; at++) {
		const struct cli_option *o = find(args->command, at, 1, true);

		if (!o)
			return cli_complain(args, "unknown option '-%c'", *at);
		if (!o->value) {
			give(args, o, NULL, NULL);
			continue;
		}
		if (!at[1] && !(*word)[1])
			return cli_complain(args, "option '-%c' needs %s", *at, o->value);
		give(args, o, NULL, at[1] ? at + 1 : *++*word);
		break;
	}
	return 0;
}

/* Finds the given option that takes variables (NAME=VALUE words); NULL: none was given. */
static const struct cli_option *with_variables(const struct cli_args *args)
{
	for (size_t i = 0; i < args->nr_options; i++)
		if (args->options[i].option && args->options[i].option->variables)
			return args->options[i].option;
	return NULL;
}

static int read_words(struct cli_args *args, char **word)
{
	bool only_operands = false;
	int rc = 0;

	for (; rc == 0 && *word; word++) {
		if (!only_operands && strcmp(*word, "--") == 0)
			only_operands = true;
		else if (!only_operands && strncmp(*word, "--", 2) == 0)
			rc = read_long(args, &word);
		else if (!only_operands && **word == '-' && (*word)[1])
			rc = read_letters(args, &word);
		else if (strchr(*word, '=') && with_variables(args))
			give(args, with_variables(args), NULL, *word);
		else
			args->operands[args->nr_operands++] = *word;
	}
	return rc;
}

static int check(const struct cli_args *args)
{
	const struct cli_command *c = args->command;
	size_t most = 0;

	while (most < CLI_OPERANDS_MAX && c->operands[most])
		most++;
	if (args->nr_operands < c->required)
		return cli_complain(args, "missing %s", c->operands[args->nr_operands]);
	if (args->nr_operands > most && !c->repeats)
		return cli_complain(args, "'%s' is one word too many", args->operands[most]);
	for (const struct cli_option *o = c->options; o->name || o->letter; o++)
		if (o->required && !cli_value(args, o->name))
			return cli_complain(args, "missing --%s %s", o->name, o->value);
	return 0;
}

static bool asks_for_help(char **word)
{
	for (; *word && strcmp(*word, "--") != 0; word++)
		if (strcmp(*word, "--help") == 0 || strcmp(*word, "-h") == 0)
			return true;
	return false;
}

int cli_run(const struct cli_command *command, char **program_argv, char **words)
{
	struct cli_args args = {.command = command, .argv = program_argv};
	size_t nr = 1;
	int rc;

	if (asks_for_help(words)) {
		show_help(command);
		return 0;
	}
	for (char **word = words; *word; word++)
		nr += strlen(*word) + 1; /* a word may hold several letters */
	args.options = calloc(nr, sizeof(*args.options));
	args.operands = calloc(nr, sizeof(*args.operands));
	if (args.options && args.operands) {
		rc = read_words(&args, words);
		if (rc == 0)
			rc = check(&args);
		if (rc == 0)
			rc = command->run(&args);
	} else {
		(void)fputs("scalai: out of memory\n", stderr);
		rc = 1;
	}
	free(args.options);
	free(args.operands);
	return rc;
}
