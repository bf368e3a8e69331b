/* SPDX-License-Identifier: Apache-2.0 */
/* The structs of a job, for the rooms above, and the functions that read and change them. */
#ifndef RS_STATE_I_H
#define RS_STATE_I_H

#include <pthread.h>

#include "meta/base/log.h"
#include "meta/base/metric.h"
#include "meta/base/text.h"
#include "meta/base/thread.h"
#include "meta/model/infer.h"
#include "reshard/version/config/config.h"
#include "reshard/data/corpus.h"
#include "reshard/checkpoint/folders/folder.h"
#include "reshard/overlay/committed.h"
#include "reshard/version/state/state.h"

/** The blobs of all ranks of one logical file, and the view under which they were written, which is a part of the view
 *  of the whole version.  Immutable but for `found`, `verified` and the findings of verification (verify/verdict.c; the
 *  report under report_lock). */
struct rs_set {
	uint32_t refs;
	uint64_t id, layout_id;
	char *file;
	const struct meta_layout *layout;	/* kept by the service */
	struct meta_topology topo;
	struct meta_state state;
	struct meta_view *view;			/* NULL for a folder's */
	struct rs_folder *folder;		/* a checkpoint folder, whose tensors these are; NULL: files of ranks */
	const struct rs_format_ops *format;	/* of its files; plain for plain files */
	char *payload;				/* what its files hold besides tensors, as far as all agree; or NULL */
	bool has_payloads;			/* that of each file is its own: `payload` below */
	uint16_t *skews;			/* block offset at which each tensor was written */
	bool found;				/* everything that the view lists was found in the blobs; atomic */
	size_t nr_blobs, room_blobs;
	struct rs_set_blob {
		uint32_t rank;
		uint64_t path_id, blob, bytes;
		const char *path;
		struct rs_owner owner;
		uint64_t payload;		/* number of the file's own one; 0: none */
		int64_t step;			/* of the commit that took it, or the oldest of what it is made of; or
						 * -1: it gave none, META_STEP_UNKNOWN */
		const struct rs_found *found;	/* it, until the set is shown; else NULL */
	} *blobs;				/* by rank, then path */
	bool one_owner;				/* all of them have the same mode and owner */
	struct rs_set *given;			/* the files as ranks wrote them (blobs 0), NULL: these */
	pthread_mutex_t report_lock;
	int verified;				/* enum meta_verified, atomic */
	char *report;				/* lines */
	uint8_t (*digests)[16];			/* of each logical tensor, NULL until verified; atomic */
};

/** A version uses a corpus from an epoch on, which begins after so many consumed samples. */
struct rs_use {
	struct rs_corpus *corpus;
	uint64_t from_epoch, from_samples;
};

/** The tensors of all sets of a version, as one state.  Versions that have the same sets share it.  Immutable once a
 *  view of one of them exists. */
struct rs_tensors {
	uint32_t refs;
	struct meta_state all;
	uint32_t nr;				/* of rs_tensors_bytes() */
	uint64_t bytes;				/* likewise, and 1 more; atomic, 0: nobody asked */
};

/** Tensors on the ranks of a topology.  Immutable.  Views of the same tensors, layout and topology share it, since it
 *  follows from these three. */
struct rs_model {
	uint32_t refs;
	struct rs_tensors *tensors;
	struct meta_topology topo;
	struct meta_view *view;			/* borrows both */
};

struct rs_version {
	uint32_t refs;
	uint64_t id, job, nr, parent, layout_id;
	int64_t step, made_ns;
	char *note, *made_by;
	const struct meta_layout *layout;
	struct meta_topology topo;
	uint64_t tree;				/* folders, links, numbers (meta/catalog/trees.h); 0: nothing */
	int64_t floor_ns;			/* no ctime is older */
	struct rs_tensors *tensors;		/* NULL until rs_version_finish() */
	const struct rs_owner *one_owner;	/* of all files of tensors, NULL: they differ, or there are none */
	size_t nr_sets, room_sets;
	struct rs_set **sets;
	uint64_t samples;			/* consumed since training began */
	struct {
		size_t nr, room;
		struct rs_use *at;		/* by name, then epoch */
	} data;
};

/** A version's position in a dataset. */
struct rs_data_at {
	struct rs_corpus *corpus, *next;	/* of this epoch, and of the next */
	uint64_t epoch, position;
	uint64_t epoch_begin;			/* consumed samples before this epoch */
};

struct rs_view_data {
	struct rs_data_at at;
	uint32_t axes, ranks;			/* that number its ranks, and how many */
};

struct rs_view {
	uint32_t refs;
	uint64_t id;
	struct rs_job *job;
	struct rs_version *version;
	struct meta_topology topo;
	struct rs_model *shared;		/* other views may have it, too */
	const struct meta_view *model;		/* shared->view */
	struct rs_origins origins;
	struct {
		size_t nr, room;
		struct rs_view_data *at;
	} data;
	bool own;				/* the version's own presentation, not .v or .as */
	const struct rs_form *form;		/* which files it shows */
	char *options;				/* of the form, NULL: it has none */
	bool archived;				/* it is asked for as its version, not as the head */
	struct rs_plain_files plain;		/* that the form shows */
	bool *as_stored;			/* of each set: its files are stored as this view presents them */
	bool kept;				/* in the service's cache; atomic */
	unsigned pins;				/* rs_view_pin(); under service.lock */
	struct rs_view *next;			/* there */
	struct rs_below *below;			/* its files by number (tree/below.c); atomic, NULL: nobody asked */
	void (*below_done)(struct rs_below *below);
};

struct rs_progress {
	uint64_t version;		/* nr, 0: idle, or of no version */
	const char *what;		/* "verifying", "materializing" */
	uint64_t done, total;		/* bytes */
	int64_t began_ns;
};

struct rs_job {
	struct rs_service *service;
	uint64_t id;
	pthread_mutex_t command;	/* held by a command, and by the switch to materialized storage */
	pthread_rwlock_t tree;		/* read: the working tree is used; write: it is sealed */
	pthread_rwlock_t names;		/* of `overlay`: read it, change it (requests/work.c) */
	pthread_mutex_t state;		/* short: everything below */
	bool removed;
	char *name;			/* others copy it by rs_job_name() */
	uid_t uid;
	gid_t gid;
	mode_t mode;
	int64_t mtime_ns;
	struct rs_view *head;		/* NULL: no commit yet.  Changes under `names`, too */
	uint64_t first_layout;		/* until then */
	char *first_topology;
	struct rs_config config;
	uint64_t root;			/* number of its folder; those of its ranks follow it */
	struct rs_overlay *overlay;	/* the working tree; of a removed job it is empty */
	struct rs_committed nothing;	/* below it, while there is no version */
	struct sc_map by_blob;		/* files of the working tree: blob -> struct rs_own; under names */
	struct sc_map sealed[2];	/* the same of files that were committed, the last ones */
	struct {
		size_t nr, room;
		uint64_t *at;
	} logs;				/* blobs of logs that were open when a commit closed the gate; under command */
	size_t nameless;		/* objects without a name that service.nameless counts; under names */
	struct {
		uint64_t next, end;
	} numbers;			/* that no object has yet; under names, for writing */
	char *error;
	uint64_t news;
	struct rs_progress progress;
	struct rs_progress verify;	/* of the command; of several that run, the first one's */
	char *stopped;			/* why the worker stopped, NULL: it did not */
	uint64_t stopped_head;		/* the view whose last pass failed; 0: none */
	int stopped_code, stopped_errnum;
	struct {
		uint64_t head, space;	/* the bytes that were free, and not enough for it */
		uint64_t news;		/* of damage, when it was tried */
		int64_t until_ns;	/* it is tried again, also without more */
	} full;				/* the worker's */
	uint64_t wanted;		/* lazy: version nr to materialize */
	uint64_t said;			/* background: the log has that this version was materialized */
	struct {
		size_t nr, room;
		struct rs_made {
			uint64_t view, blob, bytes; /* view 0: nobody finds it any more */
			uint32_t rank, kept;	/* kept: it has a row, on a node of a cluster (background/homes.c) */
			const char *path;
			int64_t left_ns;	/* when another head came, or it was found to be wrong; 0: neither */
		} *at;
	} made;				/* files of the head that an open made real, and of heads before for a moment */
	struct {
		uint64_t view, bytes, ranks;
		uint64_t again, joint;	/* times that it has to be said anew; view that cluster/joint has tried */
	} homes;			/* what this node of a cluster keeps of a head, if it is here */
	char *verify_report;
	struct {
		uint64_t tree, layout;	/* of a version; they do not change */
		char *text;		/* NULL: not looked for yet */
	} uncut; /* what `status` says of files of tensors in the job's folder */
	struct rs_whole {
		uint32_t layers, experts;
	} whole; /* while a catalog is rebuilt: its versions are parts of one that has so many; else 0 */
	struct {
		uint64_t version;	/* the head's, of which this is known */
		int64_t committed_ns;	/* when the last commit was, of which the head was made */
		size_t dirty;		/* files that no version has, as of the last time that nobody changed them */
	} shown;			/* what metrics say; under gauges_lock of the service */
};

struct rs_kept_layout {
	uint64_t id;
	struct meta_layout *layout;
	const char *source;
};

struct rs_kept_image {
	struct rs_image *image;
	struct rs_view *view;
	uint32_t rank, refs;
	const char *file;
	bool as_view, superseded;	/* superseded: who looks again gets another */
	pthread_mutex_t open_lock;
	struct rs_kept_image *next, *idle_before, *idle_after;
	uint64_t cost;
};

#define IMAGE_BUCKETS 4096
#define RS_MET_MAX 256	/* more are named once scrubbing finds them */

struct rs_parts {				/* partitions of datasets */
	pthread_mutex_t lock;
	struct rs_kept_part *first, *last;
	size_t nr;
	uint64_t bytes;
};

struct rs_service {
	struct meta_catalog *catalog;
	struct meta_store store;
	struct rs_blobs *blobs;
	struct rs_folders *folders;	/* checkpoint folders of the versions' trees */
	struct rs_events events;
	const struct rs_head_ops *head;	/* how heads move (reshard/command/commands/head.h); NULL: as on one node */
	struct rs_member *member;	/* that `head` is of (reshard/cluster/node); NULL: none */
	const struct rs_copies_ops *copies; /* what it keeps of other nodes' files (upkeep); NULL: nothing */
	bool shared, follows;		/* it is a node's of a cluster; and can read what is elsewhere (atomic) */
	bool gave_wrong;		/* rs_bytes_were_wrong(); atomic */
	bool is_held;			/* the next daemon may serve who has files of dropped versions open */
	char *preset_dir;
	pthread_mutex_t making;		/* a file is made real, or garbage is collected */
	pthread_mutex_t lock;		/* of jobs (not `naming`), paths, layouts, views, leaving, requests->pinned */
	struct {			/* removed ones, too */
		size_t nr, room;
		struct rs_job **at;
		struct sc_map by_id, by_name;	/* by name: not removed ones */
		pthread_mutex_t naming;	/* a job is made, removed or renamed */
	} jobs;
	struct {			/* by id */
		size_t nr, room;
		const char **at;
		struct sc_map ids;	/* text -> id */
		struct sc_arena arena;
	} paths;
	struct {
		size_t nr, room;
		struct rs_kept_layout **at;
	} layouts;
	struct {
		struct rs_view *first;	/* the most recent one */
		size_t nr;
	} views;
	struct {			/* views of versions that were dropped a moment ago (leaving.c) */
		size_t nr, room;
		struct rs_leaving {
			struct rs_view *view;
			int64_t since_ns;
		} *at;
		uint64_t times;		/* that a version was dropped, or got another storage */
	} leaving;
	struct {
		pthread_mutex_t lock;
		struct rs_kept_image *buckets[IMAGE_BUCKETS];
		struct rs_kept_image idle;
		uint64_t idle_cost;
	} images;
	struct rs_parts parts;
	struct {			/* damage that reads have met and nobody has judged (met.c) */
		pthread_mutex_t lock;
		size_t nr;		/* atomic */
		struct rs_met {
			uint64_t blob;
			int64_t due_ns, wait_ns;	/* when it is looked at, and how long after that again */
		} at[RS_MET_MAX];
	} met;
	struct {			/* the thread of upkeep, as who has work for it sees it (worker_call.c) */
		pthread_mutex_t lock;
		pthread_cond_t wake;
		struct sc_thread thread;
		bool stop, called, works, garbage;
		bool trees_gone;	/* trees may have records and no rows; the worker's */
		int64_t retry_ns;	/* the worker's: what failed is to be tried again then; 0: nothing */
	} worker;
	struct rs_requests *requests;	/* what worktree/requests remembers of the working trees of all jobs */
	struct rs_upkeep *upkeep;	/* what upkeep/background remembers */
	pthread_mutex_t gauges_lock;	/* of what metrics remember of jobs; the catalog is called under it */
};

struct rs_numbers {
	size_t nr, room;
	uint64_t *at;
};

/* set.c */
struct rs_set *rs_set_new(const char *file, const struct rs_format_ops *format);
struct rs_set *rs_set_ref(struct rs_set *set);
/** Returns the digest of each logical tensor; NULL if the set is not verified yet.  Digests do not change any more. */
static inline const uint8_t (*rs_set_digests(const struct rs_set *set))[16]
{
	return (const uint8_t (*)[16])__atomic_load_n(&set->digests, __ATOMIC_ACQUIRE);
}
void rs_set_unref(struct rs_set *set);
int rs_set_add_blob(struct rs_set *set, struct rs_set_blob blob);
/** Makes set->given, but for its rows; rs_set_finish() completes it. */
int rs_set_begin_given(struct rs_service *s, struct rs_set *set, const struct meta_set_row *row, struct sc_err *err);
static inline bool rs_owner_equal(const struct rs_owner *a, const struct rs_owner *b)
{
	return a->uid == b->uid && a->gid == b->gid && a->mode == b->mode;
}
/** Completes a set: sorts its blobs and makes its view. */
int rs_set_finish(struct rs_set *set, struct sc_err *err);
const struct rs_set_blob *rs_set_find(const struct rs_set *set, uint32_t rank, const char *path);
/** Parses, in place, a line of what rs_set_tensors_text() writes. */
int rs_set_parse_tensor(struct rs_set *set, char *line, struct sc_err *err);
void rs_set_tensors_text(const struct rs_set *set, struct sc_buf *buf);
uint64_t rs_set_bytes(const struct rs_set *set);
/** Returns the least step of a set's files. */
int64_t rs_set_oldest(const struct rs_set *set);
/** Returns the set that has a logical file, which the version has. */
const struct rs_set *rs_version_set(const struct rs_version *v, const char *logical_file);
/** Returns the files of a set as ranks wrote them: for a materialized set those of another set, else its own. */
const struct rs_set *rs_set_given(const struct rs_set *set);

/* payload.c */
/**
 * Finds the payload that a rank's file of tensors has in a view: the one that the rank at the same coordinates gave its
 * file, with coordinate 0 on an axis that had fewer ranks.  `like`: a tensor of the file.  0: the file has none, or
 * that of the whole set.
 */
uint64_t rs_payload_of(const struct rs_version *v, const struct meta_view *view, uint32_t rank, const char *file,
		       const struct meta_tensor *like);
/** Reads a payload by its number, or (0) that of the whole set; it is `payload` of struct rs_origins. */
int rs_payload_read(const struct rs_origins *o, uint64_t number, const struct meta_tensor *like, struct sc_arena *arena,
		    const char **ret, size_t *ret_bytes, struct sc_err *err);
/* replica.c */
/** Returns a file of the same set that has the bytes of one whose node is gone (rs_blob_is_gone()), and whose own node
 *  can be asked; NULL: there is none. */
const struct rs_set_blob *rs_replica_of(struct rs_service *s, const struct rs_set *set, const struct rs_set_blob *b);
/** Gives the place of such a file for the file of a version that is `blob`: 1, 0 (there is none), or an error. */
int rs_replica_place(struct rs_service *s, const struct rs_version *v, uint64_t blob, struct rs_place *ret,
		     struct sc_err *err);

/** Returns the first rank whose file has the same bytes: it is alike (meta_view_alike()), and has the same payload. */
uint32_t rs_view_alike(const struct rs_view *view, uint32_t rank, const char *file);

/* folders.c */
/** Tells whether a checkpoint folder can be presented at a topology; if not, `why` says why. */
bool rs_folder_has_place(const struct rs_version *v, const struct meta_topology *topo, struct rs_folder *folder,
			 struct sc_err *why);
/** Adds the checkpoint folders of a version's tree as sets, to present the version at a topology elsewhere than in its
 *  ranks' own folders.  Leaves out a folder whose tensors the layout does not place at the topology. */
int rs_version_add_folders(struct rs_service *s, struct rs_version *v, const struct meta_topology *topo,
			   struct sc_err *err);

/* models.c */
struct rs_tensors *rs_tensors_new(void);
struct rs_tensors *rs_tensors_ref(struct rs_tensors *tensors);
void rs_tensors_unref(struct rs_tensors *tensors);
/** Returns the bytes of a version's logical tensors, without what pads them, and how many they are. */
uint64_t rs_tensors_bytes(struct rs_tensors *tensors, uint32_t *ret_nr);
/** Gives the model of a version's tensors at a topology: that of another view if there is one, else a new one.
 *  Errors: those of meta_view_new(). */
int rs_model_of(struct rs_job *job, const struct rs_version *v, const struct meta_topology *topo,
		struct rs_model **ret, struct sc_err *err);
struct rs_model *rs_model_ref(struct rs_model *model);
void rs_model_unref(struct rs_model *model);

/* version.c */
int rs_version_use(struct rs_version *v, struct rs_corpus *corpus, uint64_t from_epoch,
		   uint64_t from_samples, struct sc_err *err);
struct rs_version *rs_version_new(void);
void rs_version_unref(struct rs_version *v);
int rs_version_add_set(struct rs_version *v, struct rs_set *set);
/** Collects the tensors of all sets, unless the version shares those of another version with the same sets; `whole`:
 *  the state of which this version is a part, or NULL. */
int rs_version_finish(struct rs_version *v, const struct rs_whole *whole, struct sc_err *err);
/** Makes a view of a version; takes the reference to `v`, also on failure. */
int rs_view_new(struct rs_job *job, struct rs_version *v, uint64_t id,
		const struct meta_topology *topo, struct rs_view **ret, struct sc_err *err);
/** Makes another view of the version of a view, at the same topology; both share the model. */
int rs_view_like(struct rs_view *of, uint64_t id, struct rs_view **ret, struct sc_err *err);
struct rs_origins rs_origins_of(struct rs_service *s, struct rs_version *v);
struct rs_formed rs_view_formed(const struct rs_view *view);
/** Sets the form of a new view.  Errors: those of rs_form_plain_files(). */
int rs_view_show_as(struct rs_view *view, const struct rs_form_said *said, struct sc_err *err);
/** Refuses a view that would give ranks parts of heads, by the config.json in its version, which is read if the model
 *  has heads.  Errors: SC_E_STATE, SC_E_NO_MEMORY, errors of reading. */
int rs_view_judge(const struct rs_view *view, struct sc_err *err);
/** Gives the stored name of the file of a rank that a view shows under a name; see rs_form_stored(). */
int rs_view_stored(const struct rs_view *view, uint32_t rank, const char *file, struct sc_arena *arena,
		   const char **ret, struct sc_err *err);
enum meta_verified rs_version_verified(const struct rs_version *v);
int rs_view_note_stored(struct rs_view *view, struct sc_err *err);
/** Tells whether a version is materialized, by its own view. */
bool rs_view_is_materialized(const struct rs_view *view);
/** Completes a version that has all its sets. */
void rs_version_note_owner(struct rs_version *v);
/** Tells whether a place belongs to a view.  A view of N ranks has the N places that end at its id. */
static inline bool rs_has_place(uint64_t id, uint32_t ranks, uint64_t place)
{
	return place <= id && id - place < ranks;
}

/* load.c */
/** Loads a version with all its sets and datasets; *ret is the caller's.  Errors: SC_E_NOT_FOUND, SC_E_CATALOG. */
int rs_version_load(struct rs_service *s, uint64_t id, struct rs_version **ret, struct sc_err *err);

/* share.c */
/** Fills in what a view shows of its version's datasets; checks the positions. */
int rs_data_deal(struct rs_view *view, struct sc_err *err);
/** Finds the position in the dataset whose uses begin at v->data.at[first]; *ret_next: first use of the next dataset.
 *  Errors: SC_E_COMMAND (the position is inside a batch). */
int rs_data_at(const struct rs_version *v, size_t first, size_t *ret_next, struct rs_data_at *ret,
	       struct sc_err *err);

/* layouts.c */
int rs_layout_by_id(struct rs_service *s, uint64_t id, const struct rs_kept_layout **ret,
		    struct sc_err *err);
/** Parses a layout, keeps it, and gives its number. */
int rs_layout_keep(struct rs_service *s, const char *text, uint64_t *ret_id,
		   const struct meta_layout **ret, struct sc_err *err);

/* job.c */
struct rs_config rs_config_of(struct rs_job *job); /* as it is now */
void rs_job_tell(struct rs_job *job);
/** Sets the text of `error`; the caller notifies readers. */
void rs_job_complain(struct rs_job *job, const char *command, const struct sc_err *err);

/* views.c */
int rs_view_load(struct rs_service *s, uint64_t version, struct rs_view **ret, struct sc_err *err);
/** Loads the newest version of a job when the service starts, and gives it its view again if it has none, as programs
 *  before took it.  SC_E_CORRUPT: the catalog has no row of the version. */
int rs_view_load_head(struct rs_service *s, uint64_t version, struct rs_view **ret, struct sc_err *err);
struct rs_view *rs_job_head(struct rs_job *job);	/* a reference or NULL */
/** Make `head` (NULL: none; taken) the view that plain paths show; names in the kernel become stale.  The first step is
 *  taken under job.state; the second one without it, with the view that the first one returned. */
struct rs_view *rs_job_set_head(struct rs_job *job, struct rs_view *head);
void rs_job_head_was_set(struct rs_job *job, struct rs_view *head, struct rs_view *old);
struct rs_version_found {
	const char *tag;
	uint64_t nr, id;
};
/** Tells whether a word can only be a version's number, and no tag. */
bool rs_is_version_number(const char *word);
/** Finds a version by its number or tag.  Errors: SC_E_NOT_FOUND. */
int rs_version_find(struct rs_service *s, struct rs_job *job, const char *word, struct rs_version_found *ret,
		    struct sc_err *err);

/* leaving.c */
/** Caches a view, so that it is found by its number. */
void rs_view_keep(struct rs_service *s, struct rs_view *view);
/** Keeps a view that was loaded when s->leaving.times was `loaded`; false: its version may have been dropped, or got
 *  another storage, since. */
bool rs_view_keep_loaded(struct rs_service *s, struct rs_view *view, uint64_t loaded);
#define RS_LEAVING_NS INT64_C(2000000000)
/** Keeps the views of a version that is dropped, or gets another storage, for RS_LEAVING_NS: earlier lookups can
 *  still be opened. */
void rs_views_leave(struct rs_service *s, uint64_t version);
/** Drops the leaving views whose time is over, or (`all`) all of them: at the end, and when space is needed. */
void rs_views_left(struct rs_service *s, bool all);
/** Gives a reference to a leaving view, by its number; NULL: there is none. */
struct rs_view *rs_view_leaving(struct rs_service *s, uint64_t place);
/** Lists the blobs that opens of leaving views may need, in order. */
int rs_views_leaving_blobs(struct rs_service *s, struct rs_numbers *ret, struct sc_err *err);

/* images.c */
/** Marks an image as superseded: later lookups of its file get another one. */
void rs_image_supersede(struct rs_service *s, struct rs_image *image);
/** Drops unused images of a view that is not cached any more.  NULL: of all views, and supersedes those in use. */
void rs_images_forget(struct rs_service *s, const struct rs_view *view);

/* made.c */
/** Finds the blob that an open made of a file of the job's head; 0: none. */
uint64_t rs_made_find(struct rs_view *view, uint32_t rank, const char *file, uint64_t *ret_bytes);
/** Notes that another head comes; `view` is its number (0: none).  Files that opens made of this view before are in its
 *  storage now, and forgotten here; files of other views are left from now on.  The caller holds job.state. */
void rs_made_leave(struct rs_job *job, uint64_t view);

/* bell.c */
void rs_worker_call(struct rs_service *s, bool garbage);
/** Tells whether the worker is called for something that a process may wait for, and that comes first. */
bool rs_worker_is_called(struct rs_service *s);

/* met.c; rs_damage_met() of state.h notes blobs */
/** Copies the noted blobs; returns how many. */
size_t rs_met_copy(struct rs_service *s, uint64_t ret[RS_MET_MAX]);
/** Takes a blob out of the notes: it is intact, or a mark says that it is damaged, or nothing has it any more. */
void rs_met_forget(struct rs_service *s, uint64_t blob);

#endif
