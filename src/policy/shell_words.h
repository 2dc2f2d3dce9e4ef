/* shell_words: reads a bash command line and names every simple command in it.
 *
 * Nothing is run or expanded. A visitor gets each simple command, wherever it stands: in pipes,
 * lists, subshells, functions, loops, in substitutions within words, quotes and here-documents. A
 * word is literal when its value is known before the line runs. What bash could read in another
 * way than this reader does is refused, never guessed.
 *
 * Linear in the line's length; nesting is bounded by SHELL_DEPTH_MAX. */
#pragma once

#include <stddef.h>

struct buf;
struct pd_err;
struct shell;

#define SHELL_LINE_MAX  (128u << 10) /* the kernel takes no longer argument either */
#define SHELL_DEPTH_MAX 40

enum shell_word_flag {
    SHELL_EXPANDS = 1,    /* has a variable or a substitution in it */
    SHELL_SPLITS = 2,     /* may become several words, or none */
    SHELL_PATTERN = 4,    /* has a glob, a brace expansion or a tilde in it */
    SHELL_QUOTED = 8,     /* some of it is quoted */
    SHELL_ASSIGNS = 16,   /* NAME=value */
    SHELL_FOUND_PATH = 32 /* the {} of find -exec: a path below one that find was given */
};

struct shell_word {
    const char *text;   /* the value; of a word that is not literal, what is known of its start */
    const char *source; /* as it was written: for messages */
    size_t source_len;
    unsigned flags;
};

static inline int shell_word_is_literal(const struct shell_word *w)
{
    return !(w->flags & (SHELL_EXPANDS | SHELL_PATTERN));
}

/* Valid during the visit. */
struct shell_command {
    const struct shell_word *words; /* at least one; redirections and assignments are left out */
    size_t count;
    unsigned depth;            /* how deep it is nested; unpacked commands count on from here */
    const struct shell *shell; /* the reader, for the functions below */
};

struct shell_visitor {
    int (*command)(void *ctx, const struct shell_command *c, struct pd_err *e);
    /* An assignment that stands before a command or alone, and the variable of a loop. */
    int (*assignment)(void *ctx, const struct shell_word *w, struct pd_err *e);
    /* A redirection that is no here-document: "<", ">>", "<<<", "&>" ... */
    int (*redirection)(void *ctx, const char *op, const struct shell_word *w, struct pd_err *e);
    void *ctx;
};

/* Reads a whole line (it may have newlines in it). A visitor that fails ends the reading. -1 with
 * PD_POLICY when the line cannot be read for certain: the message says where and why. */
int shell_read(const char *line, const struct shell_visitor *v, struct pd_err *e);

/* Visits these words as if a line had had them, without a shell around them. */
int shell_visit_words(const struct shell_word *words, size_t count, const struct shell_visitor *v,
                      struct pd_err *e);

/* How a script inside a command is read: by the same shell (eval), by a new bash (bash -c), by
 * another shell that may not know what bash knows (sh -c). */
enum shell_mode { SHELL_SAME, SHELL_BASH, SHELL_OTHER };
int shell_read_inside(const struct shell_command *c, const char *script, enum shell_mode mode,
                      struct pd_err *e);

/* Is the name a function that is certainly defined when this command runs? */
int shell_is_function(const struct shell_command *c, const char *name);
