/* recipe: a template that is a small file, which people can write themselves.
 *
 *     # what a line that begins like this says is for people
 *     title = VS Code in the browser
 *     programs = code-server
 *     start = code-server --auth none --bind-addr 127.0.0.1:8080
 *     file = ~/.config/code-server/config.yaml
 *         cert: false
 *     ready = port 8080
 *     port = 8080 the editor
 *
 * A line is `key = value`, and the value is the rest of it as it is. Lines below that begin with
 * four blanks belong to it, without these. docs/templates.md has the keys. The reader is strict:
 * whatever it does not know is refused, with the line. Pure, but for recipes_load. */
#pragma once

#include "base/buf.h"
#include "wire/spec.h"

#include <stdbool.h>

struct pd_err;

#define RECIPE_NAME_MAX  63u
#define RECIPE_TEXT_MAX  (64u << 10) /* a file */
#define RECIPE_ITEMS_MAX 32u         /* of each list */
#define RECIPES_MAX      64u
#define RECIPE_ENDING    ".template"

/* Strings of a recipe, which end with its text. */
struct recipe_list {
    const char *items[RECIPE_ITEMS_MAX];
    unsigned count;
};

struct recipe_file {
    const char *path, *content; /* the path is absolute, or begins with ~/ */
};

struct recipe_port {
    unsigned number;
    const char *title; /* "" when it has none */
};

struct recipe {
    char name[RECIPE_NAME_MAX + 1];
    const char *title;                /* "" when it has none */
    const char *from;                 /* default, base, restricted; with an image: base */
    const char *image;                /* NULL: the host's programs */
    struct recipe_list programs;      /* that must be there */
    struct recipe_list packages;      /* KIND:NAME, which bring them where they are missing */
    struct recipe_list packages_from; /* hosts that packages come from */
    struct recipe_list allow;         /* rules of its way out */
    struct recipe_list secrets;       /* ENV NAME HOST, one for each host */
    struct recipe_list env;           /* NAME=VALUE */
    const char *start;                /* a line for bash, or NULL */
    const char *ready;                /* the same: until it ends with 0; or NULL */
    unsigned ready_port;              /* or this port is listened at; 0: none */
    uint64_t ready_within_ms;
    struct recipe_file files[RECIPE_ITEMS_MAX];
    unsigned file_count;
    struct recipe_port ports[RECIPE_ITEMS_MAX];
    unsigned port_count;
    uint64_t memory, cpu_milli, pids, disk; /* 0: as usual */
    char *text;                             /* that all of it points into */
};

/* Reads a file's text. `where` is for errors, `name` its own. To be freed with recipe_free. The
 * error names the line, and what would be right. */
struct recipe *recipe_parse(const char *where, const char *name, const char *text, size_t len,
                            struct pd_err *e);
void recipe_free(struct recipe *r);
/* Is this a name that a recipe may have? Letters a to z, digits, `-` and `_`; not one of those that
 * are always there. */
bool recipe_is_name(const char *text);

/* Those of a server: the ones that the program carries inside, and those of a directory, which take
 * the place of one of the same name. */
struct recipes {
    struct recipe *at[RECIPES_MAX];
    unsigned count; /* by name */
};
/* `dir` may be "": none. Files of other names than NAME.template are left alone. */
int recipes_load(const char *dir, struct recipes *ret, struct pd_err *e);
void recipes_done(struct recipes *r);
const struct recipe *recipes_find(const struct recipes *r, const char *name);
