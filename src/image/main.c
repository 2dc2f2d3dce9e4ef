/* `paddock-remote image`: what `paddock image import` starts in a jail. The reason of a failure
 * goes to descriptor 2, one line. */
#include "image/image.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/parse.h"
#include "wire/image_record.h"

#include <errno.h>
#include <sys/utsname.h>

static int plan(struct pd_err *e)
{
    auto_archive a = ARCHIVE_EMPTY;
    auto_buf out = BUF_INIT(IMAGE_RECORDS_MAX * (IMAGE_RECORD_MAX + 4));
    struct utsname machine;

    if (uname(&machine) < 0)
        return pd_fail_sys(e, "ask for this machine's kind");
    if (archive_read(stdin, &a, e) < 0 || plan_make(&a, machine.machine, &out, e) < 0)
        return -1;

    int r = fd_write_all(STDOUT_FILENO, out.data, out.len);
    errno = -r;
    return r < 0 ? pd_fail_sys(e, "write the plan") : 0;
}

static int unpack(char **argv, struct pd_err *e)
{
    uint32_t packing = 0;
    uint64_t size;

    while (packing < IMAGE_PACKING_COUNT && strcmp(argv[0], image_packing_name(packing)) != 0)
        packing++;
    if (packing == IMAGE_PACKING_COUNT)
        return pd_fail(e, PD_INVALID, "'%.40s' is no packing: plain, gzip, zstd", argv[0]);
    if (parse_u64("size", argv[1], 0, INT64_MAX, &size, e) < 0)
        return -1;
    if (strcmp(argv[2], "-") != 0 && !image_is_hex(argv[2]))
        return pd_fail(e, PD_INVALID, "'%.70s' is no digest", argv[2]);
    return unpack_stream(STDIN_FILENO, STDOUT_FILENO, packing, size, argv[2], e);
}

int image_main(int argc, char **argv)
{
    struct pd_err e;
    int r;

    if (argc == 2 && !strcmp(argv[1], "plan"))
        r = plan(&e);
    else if (argc == 5 && !strcmp(argv[1], "unpack"))
        r = unpack(argv + 2, &e);
    else
        r = pd_fail(&e, PD_INVALID, "image plan, or image unpack PACKING SIZE HEX|-");

    if (r < 0)
        fprintf(stderr, "%s\n", e.msg);
    return r < 0 ? 1 : 0;
}
