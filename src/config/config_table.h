/* config_table: the keys, and values of each type as text. Private to config_*.c. */
#pragma once

#include "config/config.h"

enum config_type {
    CONFIG_TEXT,    /* char * */
    CONFIG_PATH,    /* char *, absolute or "" */
    CONFIG_LIST,    /* struct config_list */
    CONFIG_COUNT,   /* uint64_t */
    CONFIG_SIZE,    /* uint64_t, bytes */
    CONFIG_SECONDS, /* uint64_t, milliseconds */
    CONFIG_CORES,   /* uint64_t, thousandths */
    CONFIG_SWITCH,  /* uint64_t, 0 or 1 */
    CONFIG_CHOICE,  /* uint64_t, index of the name */
    CONFIG_NAME     /* char *, one of the names */
};

struct config_key {
    const char *name;
    enum config_type type;
    size_t offset;            /* in struct config */
    const char *value;        /* the default; "" of a number: worked out from the machine */
    uint64_t min, max;        /* as stored; of a list: how many it may have, 0 is 32 */
    const char *const *names; /* of a choice; ends with NULL */
    int reloadable;
    const char *aliases[4]; /* older names in the environment */
    const char *help;
};

extern const struct config_key config_keys[];
extern const unsigned config_key_count;

/* Older names that mean nothing to the server, and why. */
struct config_other {
    const char *name, *why;
};
extern const struct config_other config_others[];
extern const unsigned config_other_count;

/* The key of that name, or NULL. With `dashes`, as a flag spells it. */
const struct config_key *config_find(const char *name, size_t len, int dashes);
/* The name of the key that comes nearest; NULL when none does. */
const char *config_nearest(const char *name);

/* Is it a number whose default is worked out from the machine? */
int config_is_derived(const struct config_key *k);
/* Sets the value; on failure it is left alone and the error begins with `what`. */
int config_set(struct config *c, const struct config_key *k, const char *what, const char *text,
               struct pd_err *e);
/* Reads a count, size, time or number of cores as config_set does. */
int config_read_number(const struct config_key *k, const char *what, const char *text,
                       uint64_t *ret, struct pd_err *e);
/* Adds to a list. */
int config_add(struct config *c, const struct config_key *k, const char *what, const char *text,
               struct pd_err *e);
/* The value as config_set takes it. */
void config_show(const struct config *c, const struct config_key *k, struct buf *out);
int config_copy(struct config *to, const struct config *from, const struct config_key *k,
                struct pd_err *e);
void config_clear(struct config *c, const struct config_key *k);
/* The valid values, for people: "1 to 100", "text, json". */
void config_show_valid(const struct config_key *k, struct buf *out);
const char *config_type_name(const struct config_key *k);

/* config_check.c: host names, addresses and pairs. */
int config_check(const struct config *c, struct pd_err *e);

/* config_egress.c */
int config_check_egress(const struct config *c, struct pd_err *e);

/* config_images.c */
int config_check_images(const struct config *c, struct pd_err *e);

/* config_ceilings.c */
/* Ceilings that nobody set follow from the machine; defaults that nobody set stay below them. */
void config_derive_ceilings(struct config *c);
int config_check_ceilings(const struct config *c, struct pd_err *e);
