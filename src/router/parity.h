/* parity: does a command do the same at another provider?
 *
 * Pure. Two results are compared: how the command ended, the files of the workspace by their digest
 * where both are known, and both outputs, after what must differ between two boxes was made equal:
 * the places of workspace and home, blanks at the end of a line, and how a shell names itself in
 * front of an error. */
#pragma once

#include "router/rules.h"

#include <stddef.h>
#include <stdint.h>

struct buf;
struct json;

/* The beginning of each output that is compared. */
#define PARITY_OUTPUT_MAX (64u << 10)

#define PARITY_TREE_SIZE 32u

enum parity_bit {
    PARITY_EXIT = 1,
    PARITY_STDOUT = 2,
    PARITY_STDERR = 4,
    PARITY_TIME = 8,
    PARITY_FILES = 16,
    PARITY_UNSEEN = 32, /* no difference: the files could not be compared */
};

struct parity_output {
    const char *text;
    size_t len;    /* at most PARITY_OUTPUT_MAX */
    uint64_t size; /* of the whole */
};

struct parity_result {
    int exit_code, signal;
    bool timed_out;
    struct parity_output output[2]; /* stdout, stderr */
    const char *workspace, *home;   /* where the box has them */
    bool has_tree;
    uint8_t tree[PARITY_TREE_SIZE]; /* the digest of the workspace's files after it */
};

/* Bits of enum parity_bit for what differs, and PARITY_UNSEEN; 0: nothing does. */
unsigned parity_compare(const struct parity_result *a, const struct parity_result *b);
/* The output as it is compared. `is_err`: it may have a shell's complaints. */
void parity_normalise(const struct parity_output *o, const char *workspace, const char *home,
                      bool is_err, struct buf *out);

/* How a shadow does. */
enum parity_event {
    PARITY_COMPARED,
    PARITY_SKIPPED,  /* the command is about to do something outside */
    PARITY_DROPPED,  /* there was no room for it */
    PARITY_FAILED,   /* the shadow could not run it */
    PARITY_GIVEN_UP, /* sandboxes whose shadow cannot follow any more */
    PARITY_EVENTS
};
struct parity {
    uint64_t events[PARITY_EVENTS];
    uint64_t equal, exit, out, err, time, files, unseen;
};
/* `differs`: of a comparison. */
void parity_note(struct parity *p, enum parity_event event, unsigned differs);
/* The value for the member `shadow`: null without one. */
void parity_json(const struct parity *p, const struct router_shadow *s, struct json *j);
/* The same in the format of Prometheus; nothing without one. */
void parity_metrics(const struct parity *p, const struct router_shadow *s, struct buf *out);
