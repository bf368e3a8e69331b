/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layout: meshes and rules (docs/layout.md).  It says which logical tensor a stored tensor is a
 * piece of, and how the logical tensor is cut.  Immutable after meta_layout_parse(), free of I/O
 * (presets come through a callback), safe to share between threads.
 */
#ifndef META_LAYOUT_H
#define META_LAYOUT_H

#include "meta/model/pattern.h"

struct meta_cut {
	bool flat;	     /* `flat`: the other fields mean nothing */
	bool lcm, chunk;
	int8_t dim;	     /* negative: from the end */
	uint32_t axes;	     /* bit set of the layout's axes */
	const char *axes_text; /* as written, for messages */
	uint64_t pad;	     /* 0: none */
	uint64_t unit;	     /* of `chunk`: elements that no cut parts, as of one row; 0: each on its own */
	uint64_t size;	     /* true size, 0: as first written */
	uint32_t nr_sections;
	const uint32_t *sections; /* ratio; {1} when there are none */
	uint64_t section_sum;
	uint32_t nr_upto;
	const uint32_t *upto;	     /* parts of all sections, or of each, at most; 0: any number.  NULL: of none */
};

/* How tensors are stored as one: `join=` and the attributes that belong to it. */
struct meta_join {
	uint8_t nr;
	struct meta_glob {
		bool is_out;	     /* `!GLOB`: no member */
		struct meta_pattern pattern;
	} globs[SC_GLOBS_MAX];
	bool is_over, strip, has_alone;
	int8_t dim;		     /* is_over: negative from the end */
	enum meta_join_order { META_ORDER_RULES, META_ORDER_REVERSE, META_ORDER_NAME, META_ORDER_LISTED } order;
	uint64_t align, bucket;	     /* bucket: elements after which one is closed, 0: never */
	struct meta_pattern alone;
};

struct meta_rule {
	const char *text;
	uint32_t index;
	struct meta_pattern file, name;	    /* of the stored tensor */
	struct meta_pattern file_goal, goal; /* of the logical one */
	struct meta_pattern base;	    /* of the tensor a `like` rule copies, if is_like */
	const char *base_text;		    /* the text of that tensor's rule */
	bool is_like, tied, wrap;
	bool is_object;			    /* `object`: no tensor of the state */
	bool is_stack;			    /* `stack={G}`: all layers of a rank in a dimension in front */
	const struct meta_join *join;	    /* NULL: of one tensor */
	const char *of;			    /* end of the name of the tensor that it is about; NULL: none */
	const char *of_word;		    /* the word that `of` stands for; NULL: the last one of the name */
	bool has_local, has_layer, has_expert, has_virtual; /* {L}; {L} or {G}; {E} or {X}; {V} */
	uint8_t nr_cuts, nr_stage, nr_each;
	struct meta_cut cuts[SC_CUTS_MAX];
	int32_t stage[SC_STAGE_LIST_MAX];   /* chunk, -1: the last */
	uint8_t each[SC_AXES_MAX];
	uint32_t axes, cut_axes;	    /* all axes the rule uses, those that cut: bit sets */
	const char *rows, *columns;	    /* words of factors' names between bars, "": all names.  NULL: none */
	const char *blocks;		    /* likewise WORD:OF, of numbers of blocks */
	const char *whole;		    /* likewise, of what no cut is for */
	enum meta_factor {		    /* set by meta_rule_of_factor() */
		META_NO_FACTOR, META_ROWS, META_COLUMNS, META_BLOCKS, META_WHOLE
	} factor;
	bool has_one;			    /* of a factor: in place of the dimension that it lacks it has 1 */
};

struct meta_mesh {
	uint8_t nr;
	struct meta_mesh_axis {
		uint8_t axis;
		enum { META_DEGREE_NUMBER, META_DEGREE_AXIS, META_DEGREE_REST } kind;
		uint32_t number; /* default degree, or index of the axis whose degree it takes */
	} at[SC_AXES_MAX];
};

struct meta_layout {
	struct sc_arena arena;
	const char *source;	    /* as the user wrote it */
	const char *flat;	    /* without presets and variables: what is kept with a version */
	struct meta_axis_names axes;
	uint8_t nr_meshes;
	struct meta_mesh meshes[SC_MESHES_MAX];
	uint32_t nr_rules;
	struct meta_rule *rules;    /* `like` lines expanded, in order of matching */
	struct meta_pairs *name_pairs, *goal_pairs; /* of each rule: side by side, since every look-up reads them */
	uint32_t nr_plain;
	struct meta_plain {	    /* `plain` and `log` lines */
		const char *text;
		struct meta_pattern pattern;
		bool is_log;
	} *plain;
	bool has_logs;
	bool has_objects;	    /* a rule says `object` */
	bool has_joins;		    /* a rule says `join` or `stack` */
	int pp, ep;		    /* index of these axes, -1: no mesh has them */
};

/** Returns the text of preset `name`, NULL if there is none; borrowed, valid until the parse returns. */
typedef const char *meta_preset_fn(void *arg, const char *name);

/** Returns a preset that ships with Scalai; the default where a callback is NULL. */
const char *meta_preset_builtin(void *arg, const char *name);
/** Returns the names of these presets, separated by blanks. */
extern const char meta_preset_names[];

/**
 * Parses a layout.
 *
 * Errors: SC_E_LAYOUT with the line and what is wrong with it; SC_E_LIMIT; SC_E_NO_MEMORY.
 * Owner: *ret is the caller's, meta_layout_free() ends it.
 */
int meta_layout_parse(const char *text, meta_preset_fn *preset, void *preset_arg,
		      struct meta_layout **ret, struct sc_err *err);
struct meta_layout *meta_layout_free(struct meta_layout *layout);
void meta_layout_freep(struct meta_layout **layout);

/** Tells whether a `plain` or `log` line names a file, by its path: it is kept as it is, whatever it holds. */
bool meta_layout_is_plain(const struct meta_layout *layout, const char *file);
/** Tells whether a `log` line names a file: a commit takes such a file also while programs write to it. */
bool meta_layout_is_log(const struct meta_layout *layout, const char *file);
/** Appends a glob for a `log` line that would name a file and, by its suffix or folder, others like it.  False: there
 *  is no such glob, or the file is named as files of tensors are. */
bool meta_layout_propose_log(const char *path, struct sc_buf *ret);
/** Tells whether two layouts say the same, but for their `log` lines. */
bool meta_layout_same_but_logs(const struct meta_layout *a, const struct meta_layout *b);

/**
 * Returns the rule of a stored name: the first that matches, NULL if there is none, as of every name in a
 * plain file.  Tied rules match only if `pipelined` (pp > 1).  A file that holds no tensors has an empty
 * name, which only a rule with an empty name part (`rng.bin:`) matches.
 */
const struct meta_rule *meta_layout_first(const struct meta_layout *layout, bool pipelined,
					  const char *file, const char *name,
					  struct meta_caps *ret_caps);

/** Tells whether a stored tensor is an `object`: it stays in its file beside what is no tensor. */
bool meta_layout_is_object(const struct meta_layout *layout, bool pipelined, const char *file, const char *name);

/**
 * Finds the rule that is most like a stored name that none matches: its text, and the pattern that a line for the name
 * might have.  False: none is like it, so there is a pattern alone, or there is no memory.  The caller frees both.
 */
bool meta_layout_nearest(const struct meta_layout *layout, const char *name, struct sc_buf *ret_pattern,
			 struct sc_buf *ret_rule);

/**
 * Makes a line for a state of an optimizer that none has heard of, by a name that the layout knows of another state of
 * the same parameter: as that is cut.  False: it is no such name, or there is no memory.  The caller frees the text.
 */
bool meta_layout_state_line(const struct meta_layout *layout, bool pipelined, const char *file, const char *name,
			    struct sc_buf *ret);
/** Returns the attributes by which a line `{P} like={P}` cuts all that rules name, NULL: the layout has none.  They end
 *  at " <-". */
const char *meta_layout_cuts_all(const struct meta_layout *layout);

/** What is wrong in front of a stored name that no rule matches: parts of that name and of the layout's texts. */
struct meta_front {
	enum {
		META_FRONT_UNKNOWN,
		META_FRONT_ROOT,	/* a rule matches if `root` is what `old` is in the layout */
		META_FRONT_LACKS,	/* a rule matches with `old` in front, as the layout says */
		META_FRONT_WITHIN,	/* a rule matches without the words that wrappers of parts put there */
		META_FRONT_PART,	/* a rule has `root` in front of it, as the name of the whole model */
	} kind;
	const char *words, *root, *old; /* `words`: of an optimizer, in front of `root` */
	size_t words_bytes, root_bytes, old_bytes;
};

/** Finds what is wrong in front of a stored name that no rule matches. */
void meta_layout_front(const struct meta_layout *layout, bool pipelined, const char *file, const char *name,
		       struct meta_front *ret);

/** Returns the next rule, from index *at on, that matches a stored (or, `logical`, a logical) name. */
const struct meta_rule *meta_layout_next(const struct meta_layout *layout, bool logical,
					 const char *file, const char *name, uint32_t *at,
					 struct meta_caps *ret_caps);

/** Tells whether a rule matches a stored (or, `logical`, a logical) name; appends the captures. */
bool meta_rule_match(const struct meta_rule *rule, bool logical, const char *file,
		     const char *name, struct meta_caps *caps);

/**
 * Returns the rule of a tensor of `dims` dimensions that a rule matches: the rule itself, or, of an optimizer's factors
 * of rows or columns, one with the cuts that are left there, which is in `arena`, and in `made` for the next one; of
 * numbers of blocks one that cuts them wherever the tensor is cut whose blocks they are, and of what is whole one
 * without cuts.
 * Errors: SC_E_STATE (the rule makes it flat, or stacks it; blocks have one dimension), SC_E_NO_MEMORY.
 */
int meta_rule_of_factor(const struct meta_layout *layout, const struct meta_rule *rule, const struct meta_caps *caps,
			int dims, struct sc_arena *arena, struct sc_map *made, const struct meta_rule **ret,
			struct sc_err *err);
/** Returns such a rule of numbers of blocks with this many of them for each row, which `chunk` leaves together. */
int meta_rule_of_rows(const struct meta_rule *rule, uint64_t unit, struct sc_arena *arena, struct sc_map *made,
		      const struct meta_rule **ret, struct sc_err *err);
/** Finds what `blocks=WORD:OF` asks for beside a tensor of whose name a capture is OF: "WORD:OF", and perhaps more
 *  behind it.  NULL: nothing. */
const char *meta_rule_blocks_of(const struct meta_rule *rule, const struct meta_caps *caps);
/** Returns all axes of the first mesh that has these, as a bit set; 0: no mesh has them. */
uint32_t meta_layout_mesh_axes(const struct meta_layout *layout, uint32_t axes);

#endif
