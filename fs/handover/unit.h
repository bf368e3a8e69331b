/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a holder and systemd say to each other: sd_notify(3) and sd_listen_fds(3), by hand.  These are datagrams of
 * text and descriptors, and variables of the environment: no reason to link a program with libsystemd.
 *
 * U1. A unit with a descriptor store keeps /dev/fuse, struct fs_kept and the store's lock of a live mount.  So the
 *     mount outlives the holder: when it is killed, and when the unit is restarted, the next one has all three and
 *     goes on.
 * U2. systemd drops them when the unit has stopped.  Who still uses the mount then gets errors; unit-stop ends the
 *     mount before, and names them.
 * U3. systemd drops /dev/fuse of a mount that has ended at once, the others not: who finds them alone unlocks the
 *     store and has them removed.
 */
#ifndef FS_UNIT_H
#define FS_UNIT_H

#include <stdbool.h>

enum fs_unit_fd {
	FS_UNIT_FUSE,
	FS_UNIT_KEPT,
	FS_UNIT_LOCK,
	FS_UNIT_FDS
};

/** Is systemd told of this mount? */
bool fs_unit_is(void);
/** Says what a mount that starts waits for, which systemd is then to bear with for a minute more; "": for nothing. */
void fs_unit_waits(const char *why);
/** Tells whether this /dev/fuse is of a mount that is there still. */
bool fs_unit_is_live(int fuse_fd);
/** Says that the mount is live (Type=notify). */
void fs_unit_ready(void);
/** Tells whether the unit has a descriptor store ($FDSTORE). */
bool fs_unit_keeps(void);
/** Gives systemd descriptors, if it keeps any; those that it has already change nothing. */
void fs_unit_keep(const int fds[FS_UNIT_FDS]);
/** Takes what systemd has kept, once.  `mounted`: is the store mounted?  False: nothing, or of no living mount. */
bool fs_unit_take(bool mounted, int ret[FS_UNIT_FDS]);

#endif
