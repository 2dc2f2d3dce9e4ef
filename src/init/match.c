/* Globs and the patterns of search and replace.
 *
 * A glob is matched without recursion: only the last single star and the last double one are
 * remembered, and when the rest does not fit, it is tried again one byte (or, for a double star and
 * a slash, one directory) later. That bounds the time, whatever the glob.
 *
 * A matcher is a literal, a regular expression of the C library, or a name: a glob if it has a
 * wildcard, else a part of the name. */
#include "init/match.h"

#include "base/banned.h"
#include "base/err.h"

#include <ctype.h>

/* One [...] at *glob; leaves *glob behind it. -1: it has no end, and '[' is an ordinary byte. */
static int set_match(const char **glob, char c)
{
    const char *p = *glob + 1;
    int negated = *p == '!' || *p == '^', found = 0;
    p += negated;

    for (const char *first = p; *p && (*p != ']' || p == first); p++) {
        unsigned char low = (unsigned char)*p, high = low;
        if (p[1] == '-' && p[2] && p[2] != ']') {
            high = (unsigned char)p[2];
            p += 2;
        }
        found |= (unsigned char)c >= low && (unsigned char)c <= high;
    }

    if (*p != ']')
        return -1;
    *glob = p + 1;
    return c && c != '/' && found != negated;
}

/* One byte of the path against one element of the glob, which is left behind if it fits. */
static int one_match(const char **glob, char c)
{
    const char *p = *glob;
    if (*p == '[') {
        int r = set_match(glob, c);
        if (r >= 0)
            return r;
    } else if (*p == '?') {
        *glob = p + 1;
        return c != '/';
    } else if (*p == '\\' && p[1]) {
        *glob = p + 2;
        return c == p[1];
    }

    *glob = p + 1;
    return *p && c == *p;
}

int glob_match(const char *glob, const char *path)
{
    /* Where to go on when the rest does not fit: behind the last star, one byte later. */
    const char *star = NULL, *star_at = NULL, *wide = NULL, *wide_at = NULL;
    int wide_aligned = 0; /* "**" and a slash: only whole directories are skipped */

    while (*path || *glob) {
        if (glob[0] == '*' && glob[1] == '*') {
            while (*glob == '*')
                glob++;
            wide_aligned = *glob == '/';
            glob += wide_aligned;
            wide = glob;
            wide_at = path;
            star = NULL;
            continue;
        }

        if (*glob == '*') {
            star = ++glob;
            star_at = path;
            continue;
        }

        const char *next = glob;
        if (*path && *glob && one_match(&next, *path)) {
            glob = next;
            path++;
            continue;
        }

        if (star && *star_at && *star_at != '/') {
            path = ++star_at;
            glob = star;
            continue;
        }

        if (!wide || !*wide_at)
            return 0;
        star = NULL;
        wide_at++;
        while (wide_aligned && *wide_at && wide_at[-1] != '/')
            wide_at++;
        if (wide_aligned && wide_at[-1] != '/')
            return 0;
        path = wide_at;
        glob = wide;
    }
    return 1;
}

int matcher_init(struct matcher *m, const char *mode, const char *pattern, int any_case,
                 struct pd_err *e)
{
    *m = (struct matcher){.pattern = pattern, .len = strlen(pattern), .any_case = any_case};
    if (!m->len)
        return pd_fail(e, PD_INVALID, "the pattern is empty");
    if (!strcmp(mode, "literal"))
        return 0;
    if (!strcmp(mode, "name")) {
        m->mode = MATCH_NAME;
        return 0;
    }
    if (strcmp(mode, "regex") != 0)
        return pd_fail(e, PD_INVALID, "mode '%.40s': literal, regex or name", mode);

    int r = regcomp(&m->regex, pattern, REG_EXTENDED | REG_NEWLINE | (any_case ? REG_ICASE : 0));
    if (r) {
        char why[100];
        regerror(r, &m->regex, why, sizeof why);
        return pd_fail(e, r == REG_ESPACE ? PD_CAPACITY : PD_INVALID,
                       "pattern '%.80s': %s; a POSIX extended regular expression is expected",
                       pattern, why);
    }

    m->mode = MATCH_REGEX;
    return 0;
}

void matcher_done(struct matcher *m)
{
    if (m->mode == MATCH_REGEX)
        regfree(&m->regex);
    m->mode = MATCH_LITERAL;
}

static const char *find_any_case(const char *text, size_t len, const char *word, size_t n)
{
    for (size_t i = 0; n <= len && i <= len - n; i++) {
        size_t k = 0;
        while (k < n && tolower((unsigned char)text[i + k]) == tolower((unsigned char)word[k]))
            k++;
        if (k == n)
            return text + i;
    }
    return NULL;
}

static const char *find_literal(const struct matcher *m, const char *text, size_t len)
{
    return m->any_case ? find_any_case(text, len, m->pattern, m->len)
                       : memmem(text, len, m->pattern, m->len);
}

int matcher_find(const struct matcher *m, const char *text, size_t len, size_t from,
                 struct span ret[MATCH_GROUPS])
{
    for (int i = 0; i < MATCH_GROUPS; i++)
        ret[i] = (struct span){1, 0};

    if (m->mode == MATCH_LITERAL) {
        const char *at = from <= len ? find_literal(m, text + from, len - from) : NULL;
        if (at)
            ret[0] = (struct span){(size_t)(at - text), (size_t)(at - text) + m->len};
        return at != NULL;
    }

    regmatch_t groups[MATCH_GROUPS];
    int flags = from && text[from - 1] != '\n' ? REG_NOTBOL : 0;
    if (m->mode != MATCH_REGEX || from > len ||
        regexec(&m->regex, text + from, MATCH_GROUPS, groups, flags) != 0)
        return 0;

    for (int i = 0; i < MATCH_GROUPS; i++)
        if (groups[i].rm_so >= 0)
            ret[i] = (struct span){from + (size_t)groups[i].rm_so, from + (size_t)groups[i].rm_eo};
    return 1;
}

/* Globs know no case; so both sides are made small. */
static int glob_any_case(const char *glob, const char *name)
{
    size_t a = strlen(glob), b = strlen(name);
    char *copy = malloc(a + b + 2);
    if (!copy)
        return 0;

    for (size_t i = 0; i <= a; i++)
        copy[i] = (char)tolower((unsigned char)glob[i]);
    for (size_t i = 0; i <= b; i++)
        copy[a + 1 + i] = (char)tolower((unsigned char)name[i]);

    int r = glob_match(copy, copy + a + 1);
    free(copy);
    return r;
}

int matcher_name(const struct matcher *m, const char *name)
{
    if (strpbrk(m->pattern, "*?["))
        return m->any_case ? glob_any_case(m->pattern, name) : glob_match(m->pattern, name);
    return find_literal(m, name, strlen(name)) != NULL;
}
