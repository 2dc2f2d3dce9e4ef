/* The machine's resolvers, from /etc/resolv.conf. They are part of each policy, because a gate can
 * open no file. */
#include "gate/resolvers.h"

#include "base/banned.h"
#include "base/fd.h"
#include "gate/rules.h"

#include <fcntl.h>

void resolvers_parse(const char *text, struct buf *out)
{
    static const char word[] = "nameserver";
    unsigned count = 0;

    for (const char *line = text; *line && count < POLICY_RESOLVERS;) {
        size_t len = strcspn(line, "\n");
        const char *at = line + sizeof word - 1;
        size_t blanks = len > sizeof word ? strspn(at, " \t") : 0;
        if (blanks && !strncmp(line, word, sizeof word - 1)) {
            char address[IP_TEXT];
            struct ip a;
            at += blanks;
            size_t size = strcspn(at, " \t\r\n#;");
            if (size < sizeof address) {
                memcpy(address, at, size);
                address[size] = 0;
                if (ip_parse(address, &a)) {
                    buf_printf(out, "resolver %s\n", address);
                    count++;
                }
            }
        }
        line += len + (line[len] == '\n');
    }
    if (!count)
        buf_puts(out, "resolver 127.0.0.1\n");
}

void resolvers_read(struct buf *out)
{
    char text[8192];
    if (fd_read_file(AT_FDCWD, "/etc/resolv.conf", text, sizeof text) < 0)
        text[0] = 0;
    resolvers_parse(text, out);
}
