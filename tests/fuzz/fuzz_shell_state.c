/* What a shell command leaves: bytes from inside a jail. Whatever is accepted has an absolute
 * directory and variables with good names and without NUL, and none that loads programs. */
#include "base/err.h"
#include "core/session_state.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char cwd[SPEC_PATH_MAX];
    struct pd_err e;
    struct msg_list_writer env = MSG_LIST_WRITER_INIT;

    if (size && shell_state_parse((const char *)data, size, cwd, sizeof cwd, &env, &e) == 0) {
        if (cwd[0] != '/')
            abort();
        struct msg_list l = msg_list_of(&env);
        uint32_t pos = 0;
        for (const char *v; (v = msg_list_next(&l, &pos));) {
            size_t len = strspn(v, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                   "0123456789_");
            if (!len || v[len] != '=' || (v[0] >= '0' && v[0] <= '9') || !strncmp(v, "LD_", 3) ||
                !strncmp(v, "PADDOCK_", 8) || !strncmp(v, "BASH_ENV=", 9))
                abort();
        }
    }

    msg_list_writer_done(&env);
    return 0;
}
