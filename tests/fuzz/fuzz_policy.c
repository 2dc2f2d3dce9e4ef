/* Any command line.
 *
 * Properties: a refusal has a code and a message; a newline at the end changes nothing, unless it
 * is the empty line that a here-document was to end with; what is allowed by the restricted list is
 * not denied by its deny-list; and a line that is accepted is over: a command on the next line is
 * always found, so nothing that was open could swallow it. */
#include "base/buf.h"
#include "base/err.h"
#include "policy/policy.h"
#include "policy/shell_words.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static int check(const struct policy *p, const char *line)
{
    struct pd_err e = {.msg = ""};
    int r = policy_check_command(p, line, &e);
    require(r == 0 || r == -1);
    require(r == 0 || ((e.code == PD_POLICY || e.code == PD_TOO_LARGE) && e.msg[0] &&
                       memchr(e.msg, 0, sizeof e.msg)));
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const denied[] = {"rm", "mv", "dd", "sudo", "curl", "wget", "ssh", "qz"};
    struct pd_err e;
    auto_policy restricted = {0}, deny = {0};
    auto_buf line = BUF_INIT(SHELL_LINE_MAX + 100);
    require(policy_parse("restricted", &restricted, &e) == 0);
    require(policy_set(POLICY_DENY, denied, sizeof denied / sizeof *denied, &deny, &e) == 0);
    for (size_t i = 0; i < size; i++)
        if (data[i])
            buf_putc(&line, (char)data[i]);
    const char *text = buf_cstr(&line);
    if (!text || line.len > SHELL_LINE_MAX - 100)
        return 0;
    int narrow = check(&restricted, text), wide = check(&deny, text);
    require(narrow < 0 || wide == 0);

    const char *argv[] = {"sh", "-c", text, NULL};
    struct pd_err unused;
    (void)policy_check_argv(&deny, argv, &unused);

    /* A backslash at the end takes the newline for itself. */
    if (line.len && text[line.len - 1] == '\\')
        return 0;
    int defined = strstr(text, "qz") != NULL, here = strstr(text, "<<") != NULL;
    buf_putc(&line, '\n');
    int longer = check(&deny, buf_cstr(&line));
    require(longer == wide || (wide < 0 && here));
    buf_puts(&line, "qz x\n");
    require(defined || check(&deny, buf_cstr(&line)) < 0);
    return 0;
}
