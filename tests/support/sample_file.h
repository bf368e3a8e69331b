/* SPDX-License-Identifier: Apache-2.0 */
/* Files of the folder of samples, whose path the build gives as SAMPLE.  Include it after cmocka. */
#ifndef TESTS_SUPPORT_SAMPLE_FILE_H
#define TESTS_SUPPORT_SAMPLE_FILE_H

#define SAMPLE_BYTES_MAX (1 << 20)

/** Reads a file of at most SAMPLE_BYTES_MAX - 1 bytes, and puts a 0 behind them; the caller frees it. */
static char *load_sample(const char *name, size_t *ret_bytes)
{
	char path[512], *bytes = malloc(SAMPLE_BYTES_MAX);
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s/%s", SAMPLE, name);
	f = fopen(path, "re");
	if (!f || !bytes)
		fail_msg("cannot read %s", path);
	*ret_bytes = fread(bytes, 1, SAMPLE_BYTES_MAX - 1, f);
	bytes[*ret_bytes] = 0;
	(void)fclose(f);
	return bytes;
}

#endif
