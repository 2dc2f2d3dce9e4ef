/* daytona_api: what is said to Daytona's API, and what its answers mean. Pure: no calls are made
 * here.
 *
 * The control plane is REST and knows a sandbox by its id or by its name, which is unique in an
 * organization. Files, commands and git are the toolbox's, in the sandbox, behind a proxy. */
#pragma once

#include "engine/rented_text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pd_err;

#define DAYTONA_OWNER "paddock-owner"
#define DAYTONA_BOX   "paddock-box"
#define DAYTONA_LINK  "paddock-link" /* another one for each attempt to make a box */
#define DAYTONA_PAGE  200u
#define DAYTONA_URL   512u /* of a repository */

/* ---- making one ---- */

struct daytona_plan {
    const char *name, *owner, *box, *link;
    const char *image;    /* "": the snapshot */
    const char *snapshot; /* "": Daytona's own */
    const char *target;   /* region; "": the organization's */
    const char *git_host; /* the only name that it may reach at first; "": it reaches nothing */
    uint32_t stop_min;    /* it is stopped, and deleted, when nobody was there for so long */
    uint32_t life_min;    /* it is deleted after so long; 0: never */
    uint32_t cpu, memory_gb, disk_gb; /* of one from an image; 0: as usual there */
};
void daytona_create_body(struct buf *out, const struct daytona_plan *p);
/* Minutes that are at least so many seconds. */
uint32_t daytona_minutes(uint64_t s);
/* Is it a reference of an image that can stand in a Dockerfile and mean only that? */
bool daytona_is_image(const char *text);

/* ---- what there is ---- */

enum daytona_state {
    DAYTONA_COMES, /* it is being made or started, or in a state that nobody here knows */
    DAYTONA_RUNS,
    DAYTONA_STOPPED,
    DAYTONA_FAILED,
    DAYTONA_GONE, /* or it is about to be */
};

struct daytona_sandbox {
    char id[RENTED_ID], owner[RENTED_ID], box[RENTED_ID]; /* owner, box: or "" */
    char link[33];                                        /* or "" */
    char why[160];                                        /* of one that failed, in words; or "" */
    struct rented_url toolbox;                            /* base[0] is 0 where there is none */
    enum daytona_state state;
    bool is_blocked; /* it reaches nothing */
};
int daytona_read_sandbox(const void *json, size_t len, struct daytona_sandbox *ret,
                         struct pd_err *e);

/* The target of a list: those of an owner, from `cursor` or, with "", from the first on. */
void daytona_list_target(struct buf *out, const char *owner, const char *cursor);
#define DAYTONA_CURSOR 512u
/* -1 with *e ends the list. */
typedef int daytona_each(void *context, const struct daytona_sandbox *s, struct pd_err *e);
/* Calls it for each that has an owner and a box. `ret_cursor`: of the next page, or "". */
int daytona_read_list(const void *json, size_t len, daytona_each *each, void *context,
                      char ret_cursor[DAYTONA_CURSOR], struct pd_err *e);

struct daytona_preview {
    struct rented_url url;
    char token[RENTED_TOKEN];
};
int daytona_read_preview(const void *json, size_t len, struct daytona_preview *ret,
                         struct pd_err *e);

/* ---- in it ---- */

/* The body of /process/execute for lines of sh. */
void daytona_execute_body(struct buf *out, const char *lines, unsigned timeout_s);
/* 0 when they ended with 0. PD_LOST with what they said otherwise; `what` was tried. */
int daytona_read_executed(const void *json, size_t len, const char *what, struct pd_err *e);
/* The answer to /port/PORT/in-use. */
int daytona_read_port(const void *json, size_t len, bool *ret, struct pd_err *e);

/* A repository: a URL without a credential, whose last part names the directory it becomes. */
struct daytona_git {
    char url[DAYTONA_URL], host[260], name[128];
};
/* PD_INVALID says what is wrong. */
int daytona_git_read(const char *url, struct daytona_git *ret, struct pd_err *e);
/* Is its host one of a list with commas between? */
bool daytona_git_allowed(const struct daytona_git *g, const char *hosts);
/* The member git_url of a sandbox's options, a JSON object; "" where it has none. */
int daytona_options_read(const char *options, char ret_url[DAYTONA_URL], struct pd_err *e);
void daytona_clone_body(struct buf *out, const struct daytona_git *g);
