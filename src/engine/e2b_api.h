/* e2b_api: what is said to E2B's API, and what its answers mean. Pure: no calls are made here.
 *
 * The control plane is REST; files and processes are envd's, in the sandbox: multipart forms, and
 * Connect's streams of JSON, whose messages have a head of five bytes. */
#pragma once

#include "engine/rented_text.h"

#include <stdbool.h>
#include <stdint.h>

struct pd_err;

#define E2B_OWNER "paddock-owner"
#define E2B_BOX   "paddock-box"
#define E2B_ENVD  49983u
#define E2B_PAGE  100u

struct e2b_plan {
    const char *template, *owner, *box;
    uint32_t lease; /* s: its time-out, which is renewed */
};
void e2b_create_body(struct buf *out, const struct e2b_plan *p);
/* {"timeout": S}, of connect and of the renewal. */
void e2b_timeout_body(struct buf *out, uint32_t lease);
/* The query of a list: those of an owner; `box` may be NULL: all of them. `token`: of the next
 * page, or "". */
void e2b_list_target(struct buf *out, const char *owner, const char *box, const char *token);

/* A sandbox, as create and connect tell of it. */
struct e2b_sandbox {
    char id[RENTED_ID];
    char token[RENTED_TOKEN];   /* of envd, or "" */
    char traffic[RENTED_TOKEN]; /* of its ports, or "" */
    char domain[256];           /* or "": the one of the settings */
};
int e2b_read_sandbox(const void *json, size_t len, struct e2b_sandbox *ret, struct pd_err *e);

struct e2b_listed {
    char id[RENTED_ID], owner[RENTED_ID], box[RENTED_ID];
    bool paused;
};
/* -1 with *e ends the list. */
typedef int e2b_each(void *context, const struct e2b_listed *s, struct pd_err *e);
/* Calls it for each that has an owner and a box in its metadata. */
int e2b_read_list(const void *json, size_t len, e2b_each *each, void *context, struct pd_err *e);

/* The body of process.Process/Start for a line of sh. */
void e2b_start_body(struct buf *out, const char *line);
/* The stream of its events, whole: 0 when the process has ended with 0. PD_LOST with what it said
 * otherwise. */
int e2b_read_start(const void *data, size_t len, struct pd_err *e);
