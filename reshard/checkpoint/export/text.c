/* SPDX-License-Identifier: Apache-2.0 */
/* What a view shows, as the catalog keeps it: [mark of the form][archived][options, a blank][with folders]topology. */
#include <stdio.h>
#include <string.h>

#include "reshard/checkpoint/export/form.h"

#define ARCHIVED '#'
#define WITH_FOLDERS '+'

void rs_form_text(const struct rs_form_said *said, char ret[RS_FORM_TEXT_BYTES])
{
	const char mark[] = {said->form->mark, 0};
	const bool options = said->form->has_options;

	(void)snprintf(ret, RS_FORM_TEXT_BYTES, "%s%s%s%s%s%s", mark, said->archived ? (char[]){ARCHIVED, 0} : "",
		       options ? said->options : "", options ? " " : "",
		       said->folders ? (char[]){WITH_FOLDERS, 0} : "", said->topology);
}

void rs_form_read(char *text, struct rs_form_said *ret)
{
	*ret = (struct rs_form_said){.form = *text ? rs_form_of(*text) : NULL, .options = ""};
	text += ret->form != NULL;
	if (!ret->form)
		ret->form = &rs_form_ranks;
	ret->archived = *text == ARCHIVED;
	text += ret->archived;
	if (ret->form->has_options) {
		ret->options = text;
		text += strcspn(text, " ");
		if (*text)
			*text++ = 0;
	}
	ret->folders = *text == WITH_FOLDERS;
	ret->topology = text + ret->folders;
}
