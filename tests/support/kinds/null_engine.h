/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The null engine: reads all bytes of the images and writes none, so what it takes is the least that a reshard of
 * these images can take.  Linked to the benchmark and to tests, never to the daemon: no store can choose it.
 */
#ifndef NULL_ENGINE_H
#define NULL_ENGINE_H

#include "reshard/engine/io/engine.h"

extern const struct rs_engine_ops null_engine;

#endif
