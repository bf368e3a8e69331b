/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The words of a subcommand.  One table says which subcommands there are and what each takes; words are read by it,
 * and usage, help and complaints are written from it.
 */
#ifndef FS_ARGS_H
#define FS_ARGS_H

#include <stdbool.h>
#include <stddef.h>

#define CLI_WRONG_USAGE 2	/* exit status */
#define CLI_OPERANDS_MAX 4

struct cli_args;

struct cli_option {
	const char *name;	/* --NAME; NULL: it has only a letter */
	char letter;		/* 0: it has only a name */
	const char *value;	/* what follows it, NULL: nothing */
	const char *help;	/* NULL: it is not shown */
	bool required;
	bool variables;		/* operands NAME=VALUE that come after it are its own */
};

struct cli_command {
	const char *name;
	const char *summary;	/* a sentence without its full stop */
	const char *usage;	/* one or more lines, each without "scalai NAME" */
	const char *operands[CLI_OPERANDS_MAX]; /* their names */
	size_t required;	/* how many of them there must be */
	bool repeats;		/* the last one may come several times */
	bool other_options;	/* --WORD VALUE is taken, whatever the word is */
	const struct cli_option *options; /* the last one has neither name nor letter */
	const char *example;
	int (*run)(const struct cli_args *args); /* returns the exit status */
};

struct cli_args {
	const struct cli_command *command;
	char **argv;		/* of the program */
	size_t nr_options, nr_operands;
	struct cli_given {
		const struct cli_option *option; /* NULL: one of other_options */
		const char *name;	/* of one of those, without "--" */
		const char *value;	/* NULL: it takes none */
	} *options;		/* in the order in which they were given */
	const char **operands;
};

/**
 * Reads the words after the subcommand's name by its table, and runs it; returns the exit status.
 * Without the right words it complains, naming the wrong one, and returns CLI_WRONG_USAGE; --help and -h show the help.
 */
int cli_run(const struct cli_command *command, char **program_argv, char **words);

/** Find the last value of an option, by its name or letter; NULL: it was not given.  A flag's value is "". */
const char *cli_value(const struct cli_args *args, const char *name);

/** Complain about the words, in a sentence without its end, show the usage, and return CLI_WRONG_USAGE. */
int cli_complain(const struct cli_args *args, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
