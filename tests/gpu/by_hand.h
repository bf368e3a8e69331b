/* SPDX-License-Identifier: Apache-2.0 */
/* Files by hand: two ranks with some rows each become three ranks with some columns each, behind a text. */
#ifndef TEST_BY_HAND_H
#define TEST_BY_HAND_H

#include "reshard/engine/io/image.h"

#define BY_HAND_SOURCES 2
#define BY_HAND_IMAGES 3
#define BY_HAND_ROWS 640u
#define BY_HAND_COLUMNS 1020u	/* of each image a third */
#define BY_HAND_TEXT 100u
/* Another one has two thirds: alone, too, it is put together from rounds; of one that has a third, reads would be too many. */
#define BY_HAND_WIDE BY_HAND_IMAGES
#define BY_HAND_BYTES_MAX (BY_HAND_TEXT + BY_HAND_SOURCES * BY_HAND_ROWS * (2 * BY_HAND_COLUMNS / BY_HAND_IMAGES))
#define BY_HAND_BYTES (BY_HAND_TEXT + BY_HAND_SOURCES * BY_HAND_ROWS * (BY_HAND_COLUMNS / BY_HAND_IMAGES))

/** Makes them, once. */
void by_hand_make(void);
const struct rs_image *by_hand_image(unsigned i);
uint32_t by_hand_bytes(unsigned i);
/** Tells whether a file has the bytes of image i, and no more. */
bool by_hand_is_right(unsigned i, int fd);
/** Sources have no descriptors any more. */
extern bool by_hand_no_descriptors;

#endif
