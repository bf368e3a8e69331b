/* SPDX-License-Identifier: Apache-2.0 */
/* Every limit of Scalai in one place, with its reason.  Everything that a user can make grow has a limit. */
#ifndef SC_LIMITS_H
#define SC_LIMITS_H

#define SC_RANKS_MAX (1u << 20)	      /* a rank has 20 bits in a nodeid (fs/node/node.h) */
#define SC_AXES_MAX 16		      /* axes of all meshes of a layout */
#define SC_MESHES_MAX 4
#define SC_AXIS_NAME_MAX 31
#define SC_DIMS_MAX 8		      /* dimensions of a tensor; a box is a fixed-size value */
#define SC_STAGES_MAX 65536	      /* pipeline chunks listed by stages= */
#define SC_CAPTURES_MAX 24	      /* of a pattern, file and name together */
#define SC_CUTS_MAX 12		      /* of a rule, those of its `like` line included */
#define SC_SECTIONS_MAX 64
#define SC_GLOBS_MAX 16	      /* of a join */
#define SC_JOIN_PLACES_MAX (1u << 22) /* of the members of all joins of a view, 24 bytes each */
#define SC_STAGE_LIST_MAX 16
#define SC_RULES_MAX 8192	      /* after `like` lines are expanded */
#define SC_LAYOUT_BYTES_MAX (256u << 10)
#define SC_USE_DEPTH_MAX 8	      /* presets that use presets */
#define SC_COMMAND_BYTES_MAX 4096     /* one write to a control file */
#define SC_DATA_BYTES_MAX (16u << 20)   /* the same to `data`; kernels hand over 1 MiB, unless told otherwise */
#define SC_NAME_BYTES_MAX 255	      /* one path component, as elsewhere in Linux */
#define SC_PATH_BYTES_MAX 4095	      /* path inside a rank directory: PATH_MAX without the 0 */
#define SC_TENSOR_NAME_BYTES_MAX 4096
#define SC_TENSORS_MAX (1u << 22)     /* logical tensors of a job */
#define SC_BOXES_MAX (1u << 16)	      /* boxes of one piece: sections and flat ranges multiply */
#define SC_HEADER_BYTES_MAX 100000000 /* of a safetensors file, the format's own limit */
#define SC_CONFIG_JSON_BYTES_MAX (1u << 20) /* a longer one is not read */
#define SC_ZIP_RECORDS_MAX 1000000u   /* of an archive that torch.save() wrote: one a tensor, and a few */
#define SC_ZIP_DIRECTORY_MAX (256u << 20)
#define SC_PICKLE_BYTES_MAX (128u << 20) /* some 200 bytes a tensor */
#define SC_PICKLE_MEMORY_MAX (UINT64_C(1) << 30) /* while it is read */
#define SC_PICKLE_INTEGER_MAX 1024    /* bytes */
#define SC_PICKLE_NAME_MAX 1024	      /* bytes of a module's or a class's name */
#define SC_PAYLOAD_BYTES_MAX (16u << 20) /* what is no tensor in a file */
#define SC_OBJECTS_BYTES_MAX (64u << 20) /* of these one by one, as .dcp has them: what they share is in each */
#define SC_PICKLE_DEPTH_MAX 256	      /* dicts in dicts */
/* numbers of nodeids (meta/catalog/numbers.c) are smaller than these */
#define SC_PATH_BITS 22
#define SC_JOBS_MAX (1u << 18)	      /* 18 bits; jobs made in a mount */
#define SC_PATHS_MAX (1u << SC_PATH_BITS) /* paths of committed files; some 100 bytes of memory each */
#define SC_PLACES_MAX (UINT64_C(1) << 38) /* 38 bits; ranks of all views, in the life of a store */
#define SC_BLOBS_MAX (UINT64_C(1) << 40) /* 40 bits; files written, in the life of a store */
#define SC_NUMBERS_MAX (UINT64_C(1) << 59) /* 59 bits of a nodeid; inodes, in the life of a store */
#define SC_CLONE_BYTES_MIN (64u << 10) /* a clone costs 17 us: below this copying is faster */
#define SC_DATA_ALIGN 4096u	      /* data section of the files that Scalai writes: reflink works */

#endif
