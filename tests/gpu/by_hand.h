/* SPDX-License-Identifier: Apache-2.0 */
/* Files by hand: two ranks with some rows each become three ranks with some columns each, behind a text. */
#ifndef TEST_BY_HAND_H
#define TEST_BY_HAND_H

#include "reshard/engine/image.h"

#define BY_HAND_SOURCES 2
#define BY_HAND_IMAGES 3
#define BY_HAND_ROWS 1024u
#define BY_HAND_COLUMNS 1020u	/* of each image a third */
#define BY_HAND_TEXT 100u
#define BY_HAND_BYTES (BY_HAND_TEXT + BY_HAND_SOURCES * BY_HAND_ROWS * (BY_HAND_COLUMNS / BY_HAND_IMAGES))

/** Makes them, once. */
void by_hand_make(void);
const struct rs_image *by_hand_image(unsigned i);
/** Tells whether a file has the bytes of image i, and no more. */
bool by_hand_is_right(unsigned i, int fd);
/** Sources have no descriptors any more. */
extern bool by_hand_no_descriptors;

#endif
