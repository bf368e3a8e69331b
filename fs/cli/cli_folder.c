/* SPDX-License-Identifier: Apache-2.0 */
/* Tells what kind of folder somebody imports, by the names and formats of the files in it, before anything is made. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/cli/cli_import_i.h"
#include "meta/base/sys.h"
#include "reshard/checkpoint/folders/folder.h"
#include "reshard/codec/format/format.h"

#define PATH_BYTES 4096
#define BELOW_MAX 4	/* a Hub's cache: models--ORG--NAME/snapshots/HASH */

/* --- files --- */

static int read_fd(void *arg, uint64_t at, uint64_t bytes, void *to, struct sc_err *err)
{
	const ssize_t n = pread(*(const int *)arg, to, bytes, (off_t)at);

	return n < 0 ? sc_fail_sys(err, errno, "read")
	     : (uint64_t)n < bytes ? sc_fail(err, SC_E_FORMAT, "it became shorter") : 0;
}

bool cli_is_tensors(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct rs_file file = {.path = path, .arg = &fd, .read = read_fd, .tensors_only = true};
	const struct rs_format_ops *format = &rs_format_plain;
	struct sc_err err;
	struct stat st;

	if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
		file.bytes = (uint64_t)st.st_size;
		if (rs_format_of(&file, &format, &err) < 0)
			format = &rs_format_plain;
	}
	sc_closep(&fd);
	return format != &rs_format_plain;
}

/* Tells by its name what a file is that Scalai does not read; NULL: the name does not say. */
static const char *foreign(const char *name)
{
	static const char *const kinds[][2] = {
		{"*.gguf", "GGUF"}, {"*.onnx", "ONNX"}, {"*.h5", "HDF5"}, {"*.keras", "Keras"}, {"*.msgpack", "Flax"},
		{"*.npz", "NumPy"}, {"*.npy", "NumPy"}, {"*.tflite", "TensorFlow Lite"},
		{"*.ckpt.index", "a checkpoint of TensorFlow"}, {"*.nemo", "an archive of NeMo"},
		{"ocdbt.process_*", "a checkpoint of Orbax"}, {"manifest.ocdbt", "a checkpoint of Orbax"},
		{"*.distcp", "a part of a checkpoint of torch.distributed without its .metadata"},
		{"*.bin", "neither a zip of torch.save() nor safetensors"},
	};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		if (fnmatch(kinds[i][0], name, 0) == 0)
			return kinds[i][1];
	return NULL;
}

int cli_no_tensors(const char *path)
{
	const char *slash = strrchr(path, '/'), *kind = foreign(slash ? slash + 1 : path);

	(void)fprintf(stderr, "scalai: '%s' is no file of tensors that Scalai reads (it is %s): import takes "
			      ".safetensors files and those of torch.save(), .pt, .pth, .bin or .ckpt; convert it to "
			      "one of them\n", path, kind ? kind : "of another kind");
	return 1;
}

static uint64_t counted;	/* nftw() gives no argument */

static int count(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)path, (void)ftw;
	counted += type == FTW_F && S_ISREG(st->st_mode) ? (uint64_t)st->st_size : 0;
	return 0;
}

uint64_t cli_bytes_of(const char *path, bool follow)
{
	counted = 0;
	(void)nftw(path, count, 64, follow ? 0 : FTW_PHYS);
	return counted;
}

/* --- names --- */

/* Reads a number, which may have zeros in front, from all of a text. */
static bool read_number(const char *text, size_t bytes, uint32_t *ret)
{
	if (bytes == 0 || bytes > 9 || strspn(text, "0123456789") < bytes)
		return false;
	*ret = (uint32_t)strtoul(text, NULL, 10);
	return true;
}

/* Takes rank_3, rank-3 and rank3. */
bool cli_rank_folder(const char *name, uint32_t *ret)
{
	if (strncmp(name, "rank", 4) != 0)
		return false;
	name += 4;
	name += *name == '_' || *name == '-';
	return read_number(name, strlen(name), ret);
}

/* Takes Meta's consolidated.03.pth and verl's model_world_size_8_rank_3.pt. */
bool cli_rank_file(const char *name, uint32_t *ret, char plain[NAME_MAX + 1])
{
	static const char meta[] = "consolidated.", world[] = "_world_size_", rank[] = "_rank_";
	const char *dot = strrchr(name, '.'), *at = strstr(name, world), *number;

	if (!dot || (strcmp(dot, ".pth") != 0 && strcmp(dot, ".pt") != 0 && strcmp(dot, ".safetensors") != 0))
		return false;
	if (strncmp(name, meta, sizeof(meta) - 1) == 0) {
		number = name + sizeof(meta) - 1;
		(void)snprintf(plain, NAME_MAX + 1, "consolidated%s", dot);
		return number < dot && read_number(number, (size_t)(dot - number), ret);
	}
	number = at ? strstr(at, rank) : NULL;
	if (!number || number > dot || at == name)
		return false;
	(void)snprintf(plain, NAME_MAX + 1, "%.*s%s", (int)(at - name), name, dot);
	number += sizeof(rank) - 1;
	return read_number(number, (size_t)(dot - number), ret);
}

/* Takes model-00002-of-00003.safetensors. */
bool cli_shard(const char *name, uint32_t *ret, uint32_t *ret_of, char plain[NAME_MAX + 1])
{
	const char *of = strstr(name, "-of-"), *dot = strrchr(name, '.'), *front = of;

	if (!of || !dot || dot < of + 4 || !read_number(of + 4, (size_t)(dot - of - 4), ret_of))
		return false;
	while (front > name && front[-1] >= '0' && front[-1] <= '9')
		front--;
	if (front - name < 2 || front[-1] != '-' || !read_number(front, (size_t)(of - front), ret))
		return false;
	(void)snprintf(plain, NAME_MAX + 1, "%.*s%s", (int)(front - name) - 1, name, dot);
	return *ret >= 1 && *ret <= *ret_of;
}

/* Takes mp_rank_TT and mp_rank_TT_PPP. */
bool cli_legacy_folder(const char *name, uint32_t ret[2])
{
	ret[1] = 0;
	if (strncmp(name, "mp_rank_", 8) != 0 || strspn(name += 8, "0123456789") != 2 || !read_number(name, 2, &ret[0]))
		return false;
	return !name[2] || (name[2] == '_' && strlen(name) == 6 && read_number(name + 3, 3, &ret[1]));
}

long cli_rank_at(const char *topology, const uint32_t at[2])
{
	static const char *const axes[] = {"tp=", "pp="};
	unsigned long stride = 1, rank = 0, degree;
	bool seen[2] = {at[0] == 0, at[1] == 0};

	for (const char *word = topology, *is; *word; word += strcspn(word, " "), word += strspn(word, " ")) {
		is = strchr(word, '=');
		degree = is ? strtoul(is + 1, NULL, 10) : 0;
		for (int i = 0; i < 2; i++)
			if (strncmp(word, axes[i], 3) == 0) {
				if (at[i] >= degree)
					return -1;
				rank += at[i] * stride;
				seen[i] = true;
			}
		stride *= degree;
	}
	return seen[0] && seen[1] ? (long)rank : -1;
}

/* --- folders --- */

struct seen {
	size_t tensors, shards, legacy, numbered, rank_folders, rank_files, models, checkpoints, entries;
	bool is_checkpoint, is_pipeline, has_zero;
	char first[2][NAME_MAX + 1];	/* files of tensors */
	char other[NAME_MAX + 1];	/* the first file of a known format that is not read */
};

/* Tells whether a folder is a checkpoint of torch.distributed or DeepSpeed, whose files all ranks wrote together. */
static bool has_marker(const char *path)
{
	bool is = false;

	for (size_t i = 0; !is && rs_folder_marker(i); i++) {
		char name[PATH_BYTES];
		struct stat st;

		is = snprintf(name, sizeof(name), "%s/%s", path, rs_folder_marker(i)) < PATH_BYTES &&
		     stat(name, &st) == 0 && S_ISREG(st.st_mode);
	}
	return is;
}

static void see_folder(struct seen *s, const char *path, const char *name)
{
	uint32_t at[2];

	s->legacy += cli_legacy_folder(name, at);
	s->numbered += !name[strspn(name, "0123456789")];
	s->has_zero |= strcmp(name, "0") == 0;
	s->rank_folders += cli_rank_folder(name, at);
	s->checkpoints += has_marker(path);
}

static void see_file(struct seen *s, const char *path, const char *name)
{
	static const char *const models[] = {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
					     "pytorch_model.bin.index.json"};
	char plain[NAME_MAX + 1];
	uint32_t at, of;

	for (size_t i = 0; i < sizeof(models) / sizeof(*models); i++)
		s->models += strcmp(name, models[i]) == 0;
	s->is_pipeline |= strcmp(name, "model_index.json") == 0;
	if (cli_is_tensors(path)) {
		if (s->tensors < 2)
			(void)snprintf(s->first[s->tensors], sizeof(s->first[0]), "%s", name);
		s->tensors++;
		s->shards += cli_shard(name, &at, &of, plain);
		s->rank_files += cli_rank_file(name, &at, plain);
	} else if (!*s->other && foreign(name)) {
		(void)snprintf(s->other, sizeof(s->other), "%s", name);
	}
}

/* Looks at all that is in a folder.  What cannot be looked at counts for nothing. */
static void see(const char *path, struct seen *ret)
{
	DIR *d = opendir(path);
	const struct dirent *e;

	*ret = (struct seen){.is_checkpoint = has_marker(path)};
	while (d && (e = readdir(d))) {
		char name[PATH_BYTES];
		struct stat st;

		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		ret->entries++;
		if (snprintf(name, sizeof(name), "%s/%s", path, e->d_name) >= PATH_BYTES || stat(name, &st) < 0)
			continue;
		if (S_ISDIR(st.st_mode))
			see_folder(ret, name, e->d_name);
		else if (S_ISREG(st.st_mode))
			see_file(ret, name, e->d_name);
	}
	if (d)
		(void)closedir(d);
}

static enum cli_folder kind_of(const struct seen *s)
{
	if (s->models && !s->has_zero)
		return CLI_MODEL;
	if (s->is_checkpoint)
		return CLI_CHECKPOINT;
	if (s->legacy)
		return CLI_LEGACY;
	if (s->numbered)
		return CLI_RANKS;
	if (s->rank_folders || s->rank_files > 1)
		return CLI_NAMED_RANKS;
	if (s->shards)
		return CLI_SHARDS;
	if (s->tensors == 1)
		return CLI_MODEL;
	return s->checkpoints ? CLI_RANKS : CLI_NOTHING; /* a job's shared folders are copied as those of ranks are */
}

enum cli_folder cli_folder_kind(const char *path)
{
	struct seen s;

	see(path, &s);
	return kind_of(&s);
}

/* --- what cannot be imported --- */

/* Finds the folders below a path that could be imported, in the order of their names: how many, and the first.  `path`
 * has PATH_BYTES, and is unchanged afterwards. */
static void find_below(char *path, unsigned depth, size_t *nr, char *ret)
{
	const size_t n = strlen(path);
	struct dirent **names = NULL;
	const int found = scandir(path, &names, NULL, alphasort);

	for (int i = 0; i < found; i++) {
		const char *name = names[i]->d_name;
		struct stat st;

		if (*name != '.' && snprintf(path + n, PATH_BYTES - n, "/%s", name) < (int)(PATH_BYTES - n) &&
		    stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
			if (cli_folder_kind(path) != CLI_NOTHING) {
				if ((*nr)++ == 0)
					(void)snprintf(ret, PATH_BYTES, "%s", path);
			} else if (depth > 1) {
				find_below(path, depth - 1, nr, ret);
			}
		}
		path[n] = 0;
		free(names[i]);
	}
	free(names);
}

int cli_not_importable(const char *from)
{
	static const char forms[] = "folders 0, 1, ... of ranks (or rank_0, ...), a model as save_pretrained() leaves "
				    "it, a checkpoint of torch.distributed, DeepSpeed or Megatron, or one file of "
				    "tensors";
	char path[PATH_BYTES], below[PATH_BYTES] = "";
	size_t nr = 0;
	struct seen s;

	see(from, &s);
	(void)snprintf(path, sizeof(path), "%s", from);
	if (!s.tensors)
		find_below(path, BELOW_MAX, &nr, below);
	if (!s.entries)
		(void)fprintf(stderr, "scalai: '%s' is empty: import takes %s\n", from, forms);
	else if (s.tensors)
		(void)fprintf(stderr, "scalai: '%s' has %zu files of tensors, '%s' and '%s' among them, and nothing "
				      "says how they belong together: import one of them, or put each rank's files "
				      "into a folder of its number (0, 1, ...) and import the folder above\n", from,
			      s.tensors, s.first[0], s.first[1]);
	else if (nr && s.is_pipeline)
		(void)fprintf(stderr, "scalai: '%s' is a pipeline of diffusers, of which each part is a model by "
				      "itself: import one of them, such as '%s'\n", from, below);
	else if (nr)
		(void)fprintf(stderr, "scalai: '%s' has no tensors itself, but %zu folder%s below it look%s like a "
				      "model or a checkpoint: import '%s'%s\n", from, nr, nr == 1 ? "" : "s",
			      nr == 1 ? "s" : "", below, nr == 1 ? "" : " or another of them");
	else if (*s.other)
		(void)fprintf(stderr, "scalai: '%s' has no tensors that Scalai reads: '%s' is %s; convert it to "
				      "safetensors\n", from, s.other, foreign(s.other));
	else
		(void)fprintf(stderr, "scalai: '%s' has no tensors that Scalai reads: import takes %s\n", from, forms);
	return 1;
}

/* --- making --- */

int cli_make_folder(const char *path, mode_t mode)
{
	mode_t mask;

	if (mkdir(path, mode) == 0)
		return 0;
	if (errno != EEXIST)
		return -1;
	mask = umask(0);
	(void)umask(mask);
	return chmod(path, mode & ~mask);
}

bool cli_is_empty(const char *path)
{
	const int was = errno;
	DIR *d = opendir(path);
	const struct dirent *e;
	bool any = false;

	while (d && !any && (e = readdir(d)))
		any = strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
	if (d)
		(void)closedir(d);
	errno = was;
	return d && !any;
}
