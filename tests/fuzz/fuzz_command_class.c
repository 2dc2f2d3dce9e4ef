/* Any command line is judged.
 *
 * Properties: a verdict has a class and a reason; a command behind it on a new line never makes it
 * less, and an unknown one there makes it unknown unless the line was not read to its end. */
#include "base/buf.h"
#include "policy/shell_words.h"
#include "router/command_class.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static struct command_verdict classify(const char *line)
{
    struct command_verdict v;
    command_classify(line, "/workspace", &v);
    require(v.what < COMMAND_CLASSES && v.classes >> v.what == 1);
    require(v.reason[0] && memchr(v.reason, 0, sizeof v.reason) != NULL);
    return v;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    auto_buf line = BUF_INIT(SHELL_LINE_MAX + 100);
    for (size_t i = 0; i < size; i++)
        if (data[i])
            buf_putc(&line, (char)data[i]);
    const char *text = buf_cstr(&line);
    if (!text || line.len > SHELL_LINE_MAX - 100)
        return 0;

    struct command_verdict first = classify(text);
    /* A backslash takes the newline, and a function may have the name. */
    if ((line.len && text[line.len - 1] == '\\') || strstr(text, "qz"))
        return 0;
    buf_puts(&line, "\nqz x\n");
    struct command_verdict more = classify(buf_cstr(&line));
    require(more.what >= first.what && more.what == COMMAND_UNKNOWN);
    return 0;
}
