/* Pure readers of what the kernel and the probe write: versions, mountinfo, cgroup paths and lines
 * of findings. They have no state, so tests can feed them anything. */
#include "cli/doctor_text.h"

#include "base/banned.h"

#include <stdint.h>

/* At most four digits: no kernel will ever have more. */
static const char *take_number(const char *p, unsigned *ret)
{
    unsigned n = 0, digits = 0;
    for (; *p >= '0' && *p <= '9' && digits < 4; p++, digits++)
        n = 10 * n + (unsigned)(*p - '0');

    if (!digits || (*p >= '0' && *p <= '9'))
        return NULL;
    *ret = n;
    return p;
}

void text_kernel_version(const char *release, unsigned *ret_major, unsigned *ret_minor)
{
    unsigned major = 0, minor = 0;

    const char *p = take_number(release, &major);
    if (!p || *p != '.' || !take_number(p + 1, &minor))
        major = minor = 0;
    *ret_major = major;
    *ret_minor = minor;
}

/* The mount point is the fifth field. Returns the line behind this one, or NULL at the end. */
static const char *next_mount(const char *line, const char **ret_point, size_t *ret_len)
{
    const char *end = strchr(line, '\n'), *p = line;

    *ret_point = NULL;
    *ret_len = 0;

    for (int field = 1; field < 5; field++) {
        p = strchr(p, ' ');
        if (!p || (end && p > end))
            return end ? end + 1 : NULL;
        p++;
    }

    *ret_point = p;
    *ret_len = strcspn(p, " \n");
    return end ? end + 1 : NULL;
}

unsigned text_masked_proc(const char *mountinfo)
{
    static const char binfmt[] = "/proc/sys/fs/binfmt_misc";
    unsigned masked = 0;

    for (const char *line = mountinfo; line && *line;) {
        const char *point;
        size_t len;
        line = next_mount(line, &point, &len);
        int host = len == sizeof binfmt - 1 && !memcmp(point, binfmt, len);
        masked += len > 6 && !memcmp(point, "/proc/", 6) && !host;
    }
    return masked;
}

int text_has_root_mount(const char *mountinfo)
{
    for (const char *line = mountinfo; line && *line;) {
        const char *point;
        size_t len;
        line = next_mount(line, &point, &len);
        if (len == 1 && *point == '/')
            return 1;
    }
    return 0;
}

const char *text_container_engine(const char *cgroup)
{
    static const char *const marks[][2] = {
        {"docker", "docker"}, {"libpod", "podman"},        {"kubepods", "kubernetes"},
        {"/lxc", "lxc"},      {"machine.slice", "nspawn"}, {"containerd", "containerd"}};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (strstr(cgroup, marks[i][0]))
            return marks[i][1];
    return NULL;
}

bool text_value(const char *text, const char *name, char *out, size_t size)
{
    size_t len = strlen(name);

    for (const char *line = text; *line;) {
        size_t all = strcspn(line, "\n");
        if (all > len && !strncmp(line, name, len) && line[len] == ' ') {
            snprintf(out, size, "%.*s", (int)(all - len - 1), line + len + 1);
            return true;
        }
        line += all + (line[all] == '\n');
    }
    return false;
}

int text_probe_line(char *line, const char **ret_name, int *ret_worked, const char **ret_detail)
{
    char *verdict = strchr(line, ' ');
    if (!verdict || verdict == line)
        return -1;
    char *detail = strchr(verdict + 1, ' ');
    if (!detail)
        return -1;
    *verdict++ = 0;
    *detail++ = 0;

    int worked = !strcmp(verdict, "broken");
    if (!worked && strcmp(verdict, "held") != 0)
        return -1;

    *ret_name = line;
    *ret_worked = worked;
    *ret_detail = detail;
    return 0;
}
