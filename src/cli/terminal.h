/* terminal: puts the user's terminal into raw mode while a sandboxed program has one of its own. */
#pragma once

#include <termios.h>

struct terminal {
    int fd;
    int is_raw;
    struct termios before;
};

void terminal_raw(struct terminal *t, int fd);
/* Fine on a terminal that was never made raw. */
void terminal_restore(struct terminal *t);
/* Gives `to` the modes and the size of `from`. */
void terminal_copy_settings(int from, int to);
void terminal_copy_size(int from, int to);
