/* command_table: the programs that command_class knows, and which of their options are harmless.
 * Private to command_class.c. */
#pragma once

#include "router/command_class.h"

enum operands {
    OPERANDS_PATHS,
    OPERANDS_TEXTS,
    OPERANDS_SCRIPT, /* a text, unless an option gave it, and then paths */
    OPERANDS_URLS,
    OPERANDS_FORMAT, /* +FORMAT */
    OPERANDS_NONE,
    OPERANDS_ANY /* whatever there is, options too */
};

enum program_flag {
    OPTIONS_HARM = 1,  /* it has options that run programs or write elsewhere */
    SECOND_WRITES = 2, /* the second operand is written */
    SCRIPT_RUNS = 4,   /* the script can reach files and programs */
    DASH_I_WRITES = 8,
    BUNDLE_FIRST = 16, /* the first word may be options without a dash */
    AT_IS_A_FILE = 32  /* an argument with @ in it may name a file */
};

/* Options that it may have. Behind one, ':' says that it takes a text, ';' a path, '=' a text that
 * must be attached; '#' among the short ones stands for -NUMBER. Others make a line unknown. */
struct program {
    const char *name;
    enum command_class what;
    enum operands operands;
    unsigned flags;
    const char *shorts;
    const char *longs; /* each between blanks */
};
const struct program *program_find(const char *name); /* NULL: not known */

/* The deeds of a manager by its first word; lists with blanks between. */
struct manager {
    const char *name;
    const char *reads, *installs, *networks;
};
const struct manager *manager_find(const char *name);

/* Of find: words that take an argument, and those that take none. */
extern const char find_tests[], find_words[];
