/* SPDX-License-Identifier: Apache-2.0 */
/* Judges a new presentation of a model by the config.json in its version: no rank may have a part of a head. */
#include "reshard/version/state/state_i.h"

#include "meta/base/limits.h"
#include "reshard/checkpoint/export/facts.h"

#define CONFIG "config.json"

int rs_view_judge(const struct rs_view *view, struct sc_err *err)
{
	struct rs_plain_files plain = {0};
	const struct rs_formed x = {.plain = &plain};
	const struct rs_plain *config = NULL;
	struct rs_facts facts = {0};
	struct sc_err away;
	char *text = NULL;
	int rc;

	if (rs_config_of(view->job).accept_suspicious || !rs_facts_has_heads(view->model))
		return 0;
	rc = rs_form_plain_files(view->origins.catalog, view->version->tree, view->job->root, &plain, err);
	if (rc == 0)
		config = rs_form_plain(&x, CONFIG);
	if (config && config->bytes && config->bytes <= SC_CONFIG_JSON_BYTES_MAX) {
		text = sc_sys.alloc(config->bytes + 1);
		if (!text)
			rc = sc_nomem(err);
		else if (rs_blob_read(view->job->service->blobs, config->blob, config->bytes, text, &away) == 0)
			rc = rs_facts_read(text, config->bytes, &facts, err); /* else it is on another node */
		if (rc == 0)
			rc = rs_facts_heads(&facts, view->model, false, err);
	}
	sc_sys.release(text);
	rs_form_plain_done(&plain);
	return rc;
}
