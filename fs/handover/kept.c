/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the next daemon has to know, in memory that the holder keeps (hold.h).  Of control files: commands that are
 * being carried out, documents that are not judged yet, and how far texts were read.
 */
#include "fs/handover/handover.h"

#include <xxhash.h>

#include "fs/handover/hold.h"

struct fs_command *fs_command_begin(struct fs *fs, uint64_t fh, const void *text, size_t bytes, off_t at,
				    bool *ret_is_replay)
{
	struct fs_command mine = {.fh = fh, .at = at, .text_hash = XXH3_64bits(text, bytes),
				  .generation = fs->kept->generation};
	struct fs_command *c = NULL;

	*ret_is_replay = false;
	(void)sc_sys.random(&mine.token, sizeof(mine.token), 0);
	mine.token = mine.token >> 1 | 1;
	(void)pthread_mutex_lock(&fs->lock);
	for (size_t i = 0; i < FS_COMMANDS_MAX; i++) {
		struct fs_command *x = &fs->kept->commands[i];
		bool is_used = __atomic_load_n(&x->token, __ATOMIC_ACQUIRE);

		if (fs->replays && is_used && x->generation != mine.generation && x->fh == fh && x->at == at &&
		    x->text_hash == mine.text_hash) {
			*ret_is_replay = true;
			x->generation = mine.generation;
			c = x;
			break;
		}
		if (!is_used && !c)
			c = x;
	}
	if (c && !*ret_is_replay)
		*c = mine;
	(void)pthread_mutex_unlock(&fs->lock);
	return c;
}

void fs_command_end(struct fs_command *c)
{
	if (c)
		__atomic_store_n(&c->token, 0, __ATOMIC_RELEASE);
}

void fs_document(struct fs *fs, uint64_t fh, bool begun)
{
	uint64_t *room = NULL, *mine = NULL;

	(void)pthread_mutex_lock(&fs->lock);
	for (size_t i = 0; i < FS_DOCUMENTS_MAX; i++) {
		uint64_t *d = &fs->kept->documents[i];

		if (*d == fh)
			mine = d;
		else if (*d == 0)
			room = d;
	}
	if (begun && !mine && room)
		*room = fh;
	else if (!begun && mine)
		*mine = 0;
	(void)pthread_mutex_unlock(&fs->lock);
}

bool fs_document_is_lost(struct fs *fs, uint64_t fh)
{
	bool lost = false;

	(void)pthread_mutex_lock(&fs->lock);
	for (size_t i = 0; i < FS_DOCUMENTS_MAX; i++)
		lost |= fh && fs->kept->documents[i] == fh && !fs_handle_is_mine(fs, fh);
	(void)pthread_mutex_unlock(&fs->lock);
	return lost;
}

void fs_text_begun(struct fs *fs, uint64_t fh, uint64_t bytes)
{
	struct fs_kept *kept = fs->kept;
	struct fs_text *mine = NULL;

	(void)pthread_mutex_lock(&fs->lock);
	for (size_t i = 0; !mine && i < FS_TEXTS_MAX; i++)
		if (kept->texts[i].fh == fh)
			mine = &kept->texts[i];
	if (!mine)
		mine = &kept->texts[kept->next_text++ % FS_TEXTS_MAX];
	*mine = (struct fs_text){fh, bytes};
	(void)pthread_mutex_unlock(&fs->lock);
}

bool fs_text_is_read(struct fs *fs, uint64_t fh, uint64_t at)
{
	bool is = false;

	(void)pthread_mutex_lock(&fs->lock);
	for (size_t i = 0; i < FS_TEXTS_MAX; i++)
		is |= fs->kept->texts[i].fh == fh && at >= fs->kept->texts[i].bytes;
	(void)pthread_mutex_unlock(&fs->lock);
	return is;
}
