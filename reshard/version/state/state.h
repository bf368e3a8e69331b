/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs in memory: jobs, versions and views of them.  Files are described (images), not stored.
 * Objects with _ref and _unref are immutable and shared.  Rooms above read the structs of state_i.h; fs/ does not.
 */
#ifndef RS_STATE_H
#define RS_STATE_H

#include <sys/types.h>

#include "meta/catalog/catalog.h"
#include "reshard/checkpoint/export/form.h"

struct rs_service;
struct rs_job;
struct rs_view;
struct rs_set;

#define RS_SHARED UINT32_MAX	/* the "rank" of files of the job itself */

/** Callbacks for notifications to the floor above: declared here, filled by fs/. */
struct rs_events {
	void *arg;
	/** Called when names or attributes of a job's files have changed: cached entries are stale. */
	void (*names_changed)(void *arg);
	/** Called when something that control files show has changed. */
	void (*news)(void *arg, uint64_t job);
	/** Adds what only the mount knows to a control file of the mount (`health`, `version`).  May be NULL. */
	void (*describe)(void *arg, const char *name, struct sc_buf *buf);
	/** Walks over the files and folders of a job that programs have open, by number; of an earlier daemon's opens
	 *  some may be missing.  May be NULL: nobody has any. */
	int (*each_open)(void *arg, struct rs_job *job, int (*fn)(void *arg, uint64_t ino), void *fn_arg);
	/** Tells whether somebody may hold a folder or link, since the kernel knows it.  May be NULL: nobody does. */
	bool (*is_known)(void *arg, struct rs_job *job, uint64_t ino);
	/** Called when the gate of a job's working tree has opened (rs_tree_try_enter()): locks of the job may be held,
	 *  but not that one.  May be NULL. */
	void (*opened)(void *arg, struct rs_job *job);
	/** Called while fsck or a rebuild reads, after each MiB or so: how far it is.  May be NULL. */
	void (*progress)(void *arg, uint64_t done, uint64_t total);
};

/* --- jobs --- */

struct rs_job_attr {
	uint64_t id;
	uid_t uid;
	gid_t gid;
	mode_t mode;
	int64_t mtime_ns;	/* of its newest version or file */
};

/** Find a job; NULL: there is none.  Jobs are kept for the life of the service; a removed job is marked. */
struct rs_job *rs_job_by_id(struct rs_service *s, uint64_t id);
struct rs_job *rs_job_by_name(struct rs_service *s, const char *name);
/** Returns entry i of the service's list of jobs, NULL at the end; the caller skips removed jobs. */
struct rs_job *rs_job_at(struct rs_service *s, size_t i);
bool rs_job_is_removed(struct rs_job *job);
uint64_t rs_job_id(struct rs_job *job);
void rs_job_attr(struct rs_job *job, struct rs_job_attr *ret);
const char *rs_job_name(struct rs_job *job, char *buf, size_t bytes);

/* --- settings, errors, news --- */

int rs_render_config(struct rs_service *s, struct rs_job *job, struct sc_buf *buf,
		     struct sc_err *err);

/** Keeps the sentence of a refused command, for `error`. */
void rs_job_refused(struct rs_job *job, const char *command, const struct sc_err *err);
/** Notes the blob of an error that says damage: `health` and `status` show it from now on, and the worker looks at it.
 *  Other errors change nothing.  Thread: any. */
void rs_damage_met(struct rs_service *s, const struct sc_err *err);
bool rs_job_shows_hidden(struct rs_job *job);
bool rs_job_syncs(struct rs_job *job);	/* sync=on */
/** Returns a generation that grows whenever control files of the job show something new. */
uint64_t rs_job_news(struct rs_job *job);

/* --- views: a version at a topology --- */

/** Give references to views; rs_view_unref() drops them.  Errors: SC_E_NOT_FOUND. */
int rs_view_head(struct rs_service *s, struct rs_job *job, struct rs_view **ret,
		 struct sc_err *err);
int rs_view_version(struct rs_service *s, struct rs_job *job, uint64_t nr, struct rs_view **ret,
		    struct sc_err *err);
/** Gives a version by its number or tag. */
int rs_view_named(struct rs_service *s, struct rs_job *job, const char *word, struct rs_view **ret,
		  struct sc_err *err);
/** Gives the head at a topology (NULL: its own), in a form. */
int rs_view_as(struct rs_service *s, struct rs_job *job, const char *topology, const struct rs_form *form,
	       struct rs_view **ret, struct sc_err *err);
/** Gives the version of a view at a topology (NULL: that of the view), in a form, as a folder in the folder of that
 *  version: it has another number than the folder above it, though both may show the same files. */
int rs_view_in(struct rs_service *s, struct rs_view *of, const char *topology, const struct rs_form *form,
	       struct rs_view **ret, struct sc_err *err);
/** Tells whether a view is the folder of a version, .v/N or .as/TOPOLOGY, in which rs_view_in() may show other
 *  views. */
bool rs_view_has_others(const struct rs_view *view);
/** Tells whether a view is one folder, whose files are rank 0's. */
bool rs_view_is_folder(const struct rs_view *view);
/** Tells whether programs read the files of a view in small pieces, back and forth, as dcp.load does. */
bool rs_view_has_small_reads(const struct rs_view *view);
/** Gives the view that has a path of a folder (rs_view_is_folder()).  If the path says a version, that is a view of
 *  this version, in the same form and at the same topology; else it is a reference to the view itself.  Errors:
 *  SC_E_NOT_FOUND. */
int rs_view_of_path(struct rs_service *s, struct rs_view *view, const char *path, struct rs_view **ret,
		    struct sc_err *err);
/** Gives a version as .v/N shows it, read-only; it has other nodeids than the head. */
int rs_view_archived(struct rs_service *s, struct rs_job *job, const char *word, struct rs_view **ret,
		     struct sc_err *err);
/** Tell whether a view is the head that the job's ranks see, and whether it is a version's own presentation (not
 *  .v, .as). */
bool rs_view_is_head(const struct rs_view *view);
bool rs_view_is_own(const struct rs_view *view);
/** Makes the view that .as/TOPOLOGY would show, for this caller alone: it has no number, and no lookup finds it. */
int rs_view_present(struct rs_service *s, struct rs_job *job, const char *topology, struct rs_view **ret,
		    struct sc_err *err);
/** Replaces a reference to a view by one with the storage that its version had a moment ago; false: there is none. */
bool rs_view_before(struct rs_service *s, struct rs_view **view);
/** Tells whether the version of a view that was just found still exists, with the storage that the view has. */
bool rs_view_is_current(struct rs_service *s, const struct rs_view *view);
/** Finds the view that has a number (place): nodeids are made of these, and a view has one for each of its ranks. */
int rs_view_at(struct rs_service *s, uint64_t place, struct rs_view **ret, struct sc_err *err);
bool rs_view_has(const struct rs_view *view, uint64_t place);
uint64_t rs_view_place(const struct rs_view *view, uint32_t rank);
uint32_t rs_view_rank(const struct rs_view *view, uint64_t place);
struct rs_view *rs_view_ref(struct rs_view *view);
void rs_view_unref(struct rs_service *s, struct rs_view *view);
/** Keeps a view, of which the caller has a reference, so that its number finds it: until rs_view_unpin(), whatever
 *  becomes of its version, or until its memory or bytes are needed. */
void rs_view_pin(struct rs_service *s, struct rs_view *view);
void rs_view_unpin(struct rs_service *s, struct rs_view *view);
/** Returns the name of the first axis: `AXIS=1` is the topology of one rank. */
const char *rs_view_first_axis(const struct rs_view *view);
struct rs_job *rs_view_job(const struct rs_view *view);
int64_t rs_view_made_ns(const struct rs_view *view);
/** Walks over the versions of a job, oldest first, until `each` returns non-zero. */
int rs_versions_each(struct rs_service *s, struct rs_job *job, int (*each)(void *arg, uint64_t nr),
		     void *arg, struct sc_err *err);

/** Gives the shared image of a rank's file.  `open`: maps its sources.  Errors: SC_E_NOT_FOUND. */
int rs_view_image(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *file,
		  bool as_view, bool open, struct rs_image **ret, struct sc_err *err);
/** Gives the open image of a file that is a blob of another node, at a path of a view; rs_image_unref() ends it.
 *  Errors: SC_E_STALE (the view shows another file there by now), those of opening sources. */
int rs_view_elsewhere(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *file, uint64_t blob,
		      uint64_t bytes, struct rs_image **ret, struct sc_err *err);
/** Tells whether the bytes of a blob are in this store. */
bool rs_blob_here(struct rs_service *s, uint64_t blob);
/** Takes one more reference to an image of which the caller has one. */
void rs_image_ref(struct rs_service *s, struct rs_image *image);
void rs_image_unref(struct rs_service *s, struct rs_image *image);

/* --- files of working trees --- */

struct rs_owner {
	uid_t uid;
	gid_t gid;
	mode_t mode;
};

/* --- numbers of paths, for nodeids --- */

/** Gives the number of a path; if all are used up, this job's `error` says so. */
int rs_path_id(struct rs_job *job, const char *path, uint64_t *ret, struct sc_err *err);
/** Gives the text of a path's number; it lives as long as the service. */
int rs_path_text(struct rs_service *s, uint64_t id, const char **ret, struct sc_err *err);

#endif
