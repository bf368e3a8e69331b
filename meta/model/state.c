/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/model/state.h"

#include <stdio.h>
#include <string.h>

int meta_state_add(struct meta_state *state, const char *key, size_t key_bytes,
		   enum meta_dtype dtype, const struct meta_shape *shape)
{
	uintptr_t at = (uintptr_t)sc_map_get(&state->by_key, key, key_bytes);
	struct meta_tensor t = {.dtype = dtype, .shape = *shape};
	const char *copy, *file = state->nr ? state->tensors[state->nr - 1].file : NULL;
	const char *colon = memchr(key, ':', key_bytes);
	size_t nr = state->nr;

	if (at) {
		state->tensors[at - 1].dtype = dtype;
		state->tensors[at - 1].shape = *shape;
		return 0;
	}
	copy = sc_arena_copy(&state->arena, key, key_bytes);
	if (!file || strlen(file) != (size_t)(colon - key) || memcmp(file, key, (size_t)(colon - key)) != 0)
		file = sc_arena_copy(&state->arena, key, (size_t)(colon - key)); /* most follow one of the same file */
	if (!copy || !file)
		return -1;
	t.key = copy;
	t.file = file;
	t.name = copy + (colon - key) + 1;
	if (sc_vec_grow((void **)&state->tensors, nr, &state->room, sizeof(t)) < 0 ||
	    sc_map_put(&state->by_key, copy, key_bytes, (void *)(uintptr_t)(nr + 1)) < 0)
		return -1;
	state->tensors[state->nr++] = t;
	return 0;
}

int meta_state_add_all(struct meta_state *state, const struct meta_state *from)
{
	for (uint32_t i = 0; i < from->nr; i++) {
		const struct meta_tensor *t = &from->tensors[i];

		if (meta_state_add(state, t->key, strlen(t->key), t->dtype, &t->shape) < 0)
			return -1;
	}
	return 0;
}

const struct meta_tensor *meta_state_find(const struct meta_state *state, const char *key)
{
	uintptr_t at = (uintptr_t)sc_map_get(&state->by_key, key, strlen(key));

	return at ? &state->tensors[at - 1] : NULL;
}

void meta_state_done(struct meta_state *state)
{
	sc_map_done(&state->by_key);
	sc_sys.release(state->tensors);
	sc_arena_done(&state->arena);
	*state = (struct meta_state){0};
}

bool meta_tensor_bytes(enum meta_dtype dtype, const struct meta_shape *shape, uint64_t *ret)
{
	uint64_t n;

	if (!meta_shape_elements(shape, &n) || !sc_mul_u64(n, meta_dtype_bits(dtype), &n) || n % 8)
		return false;
	*ret = n / 8;
	return true;
}

const char *meta_tensor_each(const char *name)
{
	const char *at = strrchr(name, '@'), *p = at;

	if (!at)
		return NULL;
	for (;;) {
		const char *key = ++p;

		while ((*p >= 'a' && *p <= 'z') || (p > key && ((*p >= '0' && *p <= '9') || *p == '_')))
			p++;
		if (p == key || *p != '=')
			return NULL;
		key = ++p;
		while (*p >= '0' && *p <= '9')
			p++;
		if (p == key)
			return NULL;
		if (!*p)
			return at;
		if (*p != ',')
			return NULL;
	}
}

/* --- padding --- */

#define PADDING "@padding"

const char *meta_tensor_padding(const char *name, int *ret_dim)
{
	const char *at = strrchr(name, '@');
	const size_t n = sizeof(PADDING) - 1;

	if (!at || strncmp(at, PADDING, n) != 0 || at[n] < '0' || at[n] >= '0' + SC_DIMS_MAX || at[n + 1])
		return NULL;
	if (ret_dim)
		*ret_dim = at[n] - '0';
	return at;
}

const struct meta_tensor *meta_state_before_padding(const struct meta_state *state, const struct meta_tensor *padding)
{
	const char *end = meta_tensor_padding(padding->name, NULL);
	uintptr_t at = end ? (uintptr_t)sc_map_get(&state->by_key, padding->key, (size_t)(end - padding->key)) : 0;

	return at ? &state->tensors[at - 1] : NULL;
}

/* Makes the key of a tensor's padding; the caller ends the buffer. */
static struct sc_buf padding_key(const char *key, int dim)
{
	struct sc_buf buf = {0};

	sc_buf_printf(&buf, "%s" PADDING "%d", key, dim);
	return buf;
}

const struct meta_tensor *meta_state_padding(const struct meta_state *state, const char *key, int dim)
{
	struct sc_buf buf = padding_key(key, dim);
	const struct meta_tensor *t = buf.failed ? NULL : meta_state_find(state, buf.text);

	sc_buf_done(&buf);
	return t;
}

int meta_state_add_padding(struct meta_state *state, const struct meta_tensor *of, int dim, uint64_t rows)
{
	struct sc_buf buf = padding_key(of->key, dim);
	struct meta_shape shape = of->shape;
	int rc;

	shape.dim[dim] = rows;
	rc = buf.failed ? -1 : meta_state_add(state, buf.text, buf.bytes, of->dtype, &shape);
	sc_buf_done(&buf);
	return rc;
}
