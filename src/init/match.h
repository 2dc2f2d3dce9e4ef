/* match: patterns for search and replace. Pure, but for the C library's regular expressions. */
#pragma once

#include <regex.h>
#include <stddef.h>

struct pd_err;

/* Whether a path fits a glob: * and ? stop at slashes, [a-z] and [!a-z], ** spans directories, a
 * backslash takes the next byte as it is. Takes time at most |glob| * |path|^2. */
int glob_match(const char *glob, const char *path);

enum match_mode { MATCH_LITERAL, MATCH_REGEX, MATCH_NAME };

struct matcher {
    enum match_mode mode;
    const char *pattern; /* the caller's */
    size_t len;
    int any_case;
    regex_t regex;
};

#define MATCH_GROUPS 10
struct span {
    size_t start, end;
};

/* `mode` is "literal", "regex" (POSIX extended) or "name". matcher_done also after a failure. */
int matcher_init(struct matcher *m, const char *mode, const char *pattern, int any_case,
                 struct pd_err *e);
void matcher_done(struct matcher *m);
/* The first match in text[from..len), which must end with a NUL at `len`. 1 or 0. For a regular
 * expression a line ends at its newline: neither . nor [^a] matches that, ^ and $ match around it.
 * ret[0] is the match, the others are its groups (start > end:
 * none). */
int matcher_find(const struct matcher *m, const char *text, size_t len, size_t from,
                 struct span ret[MATCH_GROUPS]);
/* Whether a file's name (the last component) is meant; for mode "name": a glob, or without any of
 * *?[ a part of the name. */
int matcher_name(const struct matcher *m, const char *name);
