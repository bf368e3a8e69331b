/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays that an upper layer and the world below it are compared with, and random records that change both. */
#ifndef PROP_TREES_H
#define PROP_TREES_H

#include "meta/tree/change.h"

#include <stdio.h>
#include <string.h>

#include "tests/prop/pick.h"

#define JOB 7u
#define ROOT 1000u	/* of the job's folder; two ranks follow */
#define NUMBER(i) (ROOT + (i) + ((i) < 3 ? 0 : UINT64_C(1) << 21))
#define INOS 160u
#define NAMES 5u
#define XATTRS 3u

/* What a layer says about each number, name and attribute; of a world, what is seen. */
enum has { NOTHING, HIDDEN, HAS };
struct layer {
	bool row[INOS];
	struct meta_inode_row inode[INOS];
	struct {
		enum has has;
		unsigned ino;
	} entry[INOS][NAMES];
	unsigned xattr[INOS][XATTRS];	/* 0: none, else a value */
};

static struct layer upper, base;	/* base: the world of the job's version */
static unsigned given;			/* numbers so far */

/* No name is the beginning of the numbers' order: longer and shorter ones, and bytes that are no text. */
static const struct meta_bytes names[NAMES] = {{"a", 1}, {"ab", 2}, {"b\0c", 3}, {"\xff", 1}, {"", 0}};

static struct meta_bytes target_of(unsigned value)
{
	static char text[16][16];

	(void)snprintf(text[value % 16], sizeof(text[0]), "%u", value);
	return (struct meta_bytes){text[value % 16], strlen(text[value % 16])};
}

static unsigned index_of(uint64_t number)
{
	return (unsigned)(number < ROOT + 3 ? number - ROOT : number - NUMBER(3) + 3);
}

static bool is_folder(unsigned i)
{
	return i < 3 || i % 4 == 0;
}

static bool is_special(unsigned i)
{
	return i >= 3 && i % 8 == 7;
}

static mode_t type_of(unsigned i)
{
	static const mode_t special[] = {S_IFIFO, S_IFSOCK, S_IFCHR, S_IFBLK};

	return is_folder(i) ? S_IFDIR : is_special(i) ? special[i / 8 % 4] : i % 4 == 1 ? S_IFLNK : S_IFREG;
}

/* --- records: applied to the catalog and to the arrays --- */

static struct meta_changes record;

static void say(struct meta_change x)
{
	assert_int_equal(0, sc_vec_push(&record, x));
}

static struct meta_inode_row any_row(unsigned i, uint32_t nlink)
{
	mode_t type = type_of(i);

	return (struct meta_inode_row){
		.ino = NUMBER(i), .job = JOB, .mode = type | pick(01000), .uid = pick(5), .gid = pick(5),
		.rdev = is_special(i) ? pick(9) : 0, .nlink = nlink, .atime_ns = (int64_t)pick(9) - 4,
		.mtime_ns = pick(9), .ctime_ns = pick(9), .parent = is_folder(i) ? ROOT + pick(9) : 0,
		.data = type == S_IFREG ? META_OWN_DATA + pick(2) : META_NO_DATA, .blob = type == S_IFREG ? 1 + pick(9) : 0,
		.target = type == S_IFLNK ? target_of(pick(16)) : (struct meta_bytes){"", 0}};
}

static void put_row(unsigned i, uint32_t nlink)
{
	upper.row[i] = true;
	upper.inode[i] = any_row(i, nlink);
	say((struct meta_change){META_PUT_INODE, .inode = upper.inode[i]});
}

static void put_xattr(unsigned i, unsigned x, unsigned value)
{
	upper.xattr[i][x] = value;
	if (value)
		say((struct meta_change){META_PUT_XATTR, .xattr = {NUMBER(i), names[x], target_of(value)}});
	else
		say((struct meta_change){META_DROP_XATTR, .xattr = {NUMBER(i), names[x], {0}}});
}

/* A row comes up with its attributes. */
static void up(unsigned i)
{
	if (!upper.row[i])
		for (unsigned x = 0; x < XATTRS; x++)
			if (base.xattr[i][x])
				put_xattr(i, x, base.xattr[i][x]);
	put_row(i, upper.row[i] ? upper.inode[i].nlink : base.row[i] ? base.inode[i].nlink : 1);
}

static void put_entry(unsigned p, unsigned n, unsigned ino)
{
	upper.entry[p][n].has = ino ? HAS : HIDDEN;
	upper.entry[p][n].ino = ino;
	say((struct meta_change){META_PUT_ENTRY, .entry = {NUMBER(p), names[n], ino ? NUMBER(ino) : 0}});
}

static void drop_entry(unsigned p, unsigned n)
{
	upper.entry[p][n].has = NOTHING;
	say((struct meta_change){META_DROP_ENTRY, .entry = {NUMBER(p), names[n], 0}});
}

static unsigned merged(unsigned p, unsigned n)
{
	if (upper.entry[p][n].has != NOTHING)
		return upper.entry[p][n].has == HAS ? upper.entry[p][n].ino : 0;
	return base.entry[p][n].has == HAS ? base.entry[p][n].ino : 0;
}

static bool has_row(unsigned i)
{
	return upper.row[i] ? upper.inode[i].nlink > 0 : base.row[i];
}

static void reach(const struct layer *world, bool over, bool ret[INOS])
{
	unsigned left[INOS], nr = 0;

	(void)memset(ret, 0, INOS * sizeof(*ret));
	for (unsigned i = 0; i < 3; i++)
		if (over ? has_row(i) : world->row[i])
			ret[left[nr++] = i] = true;
	while (nr) {
		unsigned p = left[--nr];

		for (unsigned n = 0; n < NAMES; n++) {
			unsigned i = over ? merged(p, n) : world->entry[p][n].has == HAS ? world->entry[p][n].ino : 0;

			if (i && !ret[i])
				ret[left[nr++] = i] = true;
		}
	}
}

/* A folder with a path, or INOS. */
static unsigned any_folder(void)
{
	bool live[INOS];
	unsigned f = INOS, nr = 0;

	reach(&base, true, live);
	for (unsigned i = 0; i < given; i++)
		if (live[i] && is_folder(i) && pick(++nr) == 0)
			f = i;
	return f;
}

static void remove_name(unsigned p, unsigned n)
{
	unsigned ino = merged(p, n);
	bool live[INOS];

	for (unsigned m = 0; is_folder(ino) && m < NAMES; m++)
		if (merged(ino, m))
			return; /* it is not empty */
	up(p);
	if (base.entry[p][n].has == HAS)
		put_entry(p, n, 0);
	else
		drop_entry(p, n);
	reach(&base, true, live);
	if (live[ino])
		return;
	if (pick(2)) {
		put_row(ino, 0);
		return;
	}
	say((struct meta_change){META_DROP_INODE, .inode = {.ino = NUMBER(ino)}});
	upper.row[ino] = false;
	(void)memset(upper.entry[ino], 0, sizeof(upper.entry[ino]));
	(void)memset(upper.xattr[ino], 0, sizeof(upper.xattr[ino]));
}

static void one_change(void)
{
	unsigned p = any_folder(), n = pick(NAMES), ino;

	if (p == INOS || pick(12) == 0) {
		put_row(pick(3), 2);
		return;
	}
	ino = merged(p, n);
	switch (pick(9)) {
	case 0:
	case 1:
		if (ino)
			remove_name(p, n);
		return;
	case 2:
		if (ino && has_row(ino)) {
			up(ino);
			put_xattr(ino, pick(XATTRS), pick(3));
		}
		return;
	case 3: /* with all that is in it */
		for (unsigned m = 0; ino && is_folder(ino) && m < NAMES; m++)
			if (merged(ino, m) && !is_folder(merged(ino, m)))
				remove_name(ino, m);
		if (ino)
			remove_name(p, n);
		return;
	case 4: /* a special file in its place */
		if (!ino || is_folder(ino) || (given | 7) >= INOS)
			return;
		remove_name(p, n);
		given |= 7;
		put_row(given, 1);
		put_entry(p, n, given++);
		return;
	case 5: /* another name for it */
		if (ino && !is_folder(ino) && (p = any_folder()) < INOS && !merged(p, n = pick(NAMES))) {
			up(ino);
			up(p);
			put_entry(p, n, ino);
		}
		return;
	default:
		if (!ino && given < INOS) {
			put_row(given, 1);
			put_entry(p, n, given++);
			up(p);
		}
	}
}

#endif
