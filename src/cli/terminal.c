/* The caller's terminal: raw while a command has it, with its size and modes copied to the
 * command's own terminal. */
#include "cli/terminal.h"

#include <sys/ioctl.h>

void terminal_raw(struct terminal *t, int fd)
{
    struct termios raw;

    if (tcgetattr(fd, &t->before) < 0)
        return;

    raw = t->before;
    cfmakeraw(&raw);
    t->fd = fd;
    t->is_raw = tcsetattr(fd, TCSADRAIN, &raw) == 0;
}

void terminal_restore(struct terminal *t)
{
    if (t->is_raw)
        tcsetattr(t->fd, TCSADRAIN, &t->before);
    t->is_raw = 0;
}

void terminal_copy_size(int from, int to)
{
    struct winsize size;
    if (ioctl(from, TIOCGWINSZ, &size) == 0)
        ioctl(to, TIOCSWINSZ, &size);
}

void terminal_copy_settings(int from, int to)
{
    struct termios modes;
    if (tcgetattr(from, &modes) == 0)
        tcsetattr(to, TCSANOW, &modes);
    terminal_copy_size(from, to);
}
