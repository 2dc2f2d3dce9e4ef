/* shell_reader: the parts of the reader know each other by this: shell_words.c reads characters and
 * words, shell_simple.c simple commands and redirections, shell_grammar.c lists and compound
 * commands, shell_lines.c what belongs to the ends of lines: comments and here-documents. Nobody
 * else includes it. */
#pragma once

#include "base/buf.h"
#include "policy/shell_words.h"

/* One text that is read: a line, the inside of backquotes, a script, a here-document's body. */
struct shell {
    const char *text;
    size_t len, pos;
    size_t origin; /* of the text, in the outermost line */
    int nested;    /* positions are the origin's */
    unsigned depth;
    int portable;          /* refuse what only bash knows */
    struct buf docs;       /* here-documents that the next newline starts: see doc_add */
    int docs_blocked;      /* in a substitution on the line of a here-document */
    struct buf *functions; /* names, each with its NUL; shared by all texts of one shell */
    const struct shell_visitor *visitor;
    struct pd_err *e;
};

/* A word while it is read. */
struct reading {
    struct buf text;
    size_t start; /* of the source */
    unsigned flags;
    int brace, bracket; /* how far a brace expansion or a bracket pattern has come */
    int assignment;     /* state of the search for NAME= */
    int subscripts;
};

enum quoting { Q_NONE, Q_DOUBLE, Q_DOC };

/* Fails with the position; always -1. */
int shell_fail(struct shell *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int shell_only_bash(struct shell *s, const char *what);

/* The character at the position, 0 at the end; lines that are continued by a backslash are joined.
 * `after` looks n characters ahead; call peek first. */
int shell_peek(struct shell *s);
int shell_after(const struct shell *s, size_t n);
void shell_skip(struct shell *s, size_t n);
void shell_skip_blanks(struct shell *s);
/* Blanks, comments and newlines, with the here-documents that begin there. */
int shell_skip_lines(struct shell *s);
int shell_skip_comment(struct shell *s);
int shell_is_meta(int c);
int shell_is_name(int c);

/* Reads the word at the position, which may turn out empty (r->flags and r->text say). */
int shell_read_word(struct shell *s, struct reading *r);
void reading_init(struct reading *r);
void reading_done(struct reading *r);
#define auto_reading __attribute__((cleanup(reading_done))) struct reading
const char *reading_text(struct shell *s, struct reading *r);

/* A here-document's body: only expansions mean something in it. */
int shell_read_body(struct shell *s);
/* The inside of (( )), behind the two brackets, with both closing ones. */
int shell_read_arithmetic(struct shell *s);
int shell_doc_add(struct shell *s, const struct reading *delimiter, int strip_tabs);

/* The stops of a list: what stands there is taken, but for ;; */
enum stop {
    STOP_END = 1,
    STOP_PAREN = 2,
    STOP_BRACE = 4,
    STOP_THEN = 8,
    STOP_ELSE = 16,
    STOP_ELIF = 32,
    STOP_FI = 64,
    STOP_DO = 128,
    STOP_DONE = 256,
    STOP_ESAC = 512,
    STOP_CASE = 1024
};
int shell_read_list(struct shell *s, unsigned until, unsigned *ret_stop);
/* The list up to the bracket, of a substitution whose opening is behind us. */
int shell_read_substitution(struct shell *s);
/* A text of its own, read by the same shell. */
int shell_read_nested(const struct shell *s, const char *text, size_t len);

/* The redirections at the position, if there are any. */
int shell_read_redirections(struct shell *s);
/* A simple command up to its end; the visitor is told of it. A definition's name goes to
 * `ret_function`, with its NUL. */
int shell_read_simple(struct shell *s, struct buf *ret_function);
/* NAME () body, from the bracket on. */
int shell_read_definition(struct shell *s, struct reading *name, struct buf *ret_function);
/* A function's body: any compound command. */
int shell_read_function_body(struct shell *s, const char *name);
/* Tells the visitor of a word that gives a variable its value. */
int shell_visit_assignment(struct shell *s, struct reading *r);
