/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the files of tensors of a version that are its model. */
#include "reshard/checkpoint/export/form.h"

#include <fnmatch.h>
#include <string.h>

#define ONE "model.safetensors"

/* Tells whether a glob matches a file, and how many files there are. */
static bool any_file(const struct meta_state *state, const char *glob, uint32_t *ret_files)
{
	const char *last = "";
	bool any = false;

	*ret_files = 0;
	for (uint32_t i = 0; i < state->nr; i++) {
		if (strcmp(last, state->tensors[i].file) == 0)
			continue;
		last = state->tensors[i].file;
		++*ret_files;
		any |= fnmatch(glob, last, 0) == 0;
	}
	return any;
}

int rs_form_model_files(const struct rs_formed *x, const char **ret, struct sc_err *err)
{
	static const char *const usual[] = {ONE, "model-[0-9]*-of-[0-9]*.safetensors", "pytorch_model.bin",
					    "pytorch_model-[0-9]*-of-[0-9]*.bin"};
	const char *said = strchr(x->options, ',') + 1;
	uint32_t nr = 0;

	*ret = said;
	if (*said && !any_file(x->view->state, said, &nr))
		return sc_fail(err, SC_E_UNSUPPORTED, "the version has no file of tensors '%s', as config says by hf=",
			       said);
	if (*said)
		return 0;
	for (size_t i = 0; i < sizeof(usual) / sizeof(*usual); i++) {
		*ret = usual[i];
		if (any_file(x->view->state, *ret, &nr))
			return 0;
	}
	*ret = "*";
	if (nr != 1)
		return sc_fail(err, SC_E_UNSUPPORTED, "the version has %u files of tensors, and none is '%s'; say in "
			       "config which one is the model: hf=FILE", nr, ONE);
	return 0;
}
