/* Texts and files of images, and records of them: no bytes break a reader, a plan that was made can
 * be read, and a record that was read is written as the same bytes. */
#include "base/err.h"
#include "image/image.h"
#include "image/manifest.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void record(const uint8_t *data, size_t size)
{
    static struct image_record r;
    auto_buf again = BUF_INIT(1u << 20);

    if (image_record_decode(data, size, &r, NULL) < 0)
        return;
    image_record_encode(&again, &r);
    if (again.overflow || again.len != size || memcmp(again.data, data, size) != 0)
        abort();
}

static void file(const uint8_t *data, size_t size)
{
    auto_archive a = ARCHIVE_EMPTY;
    auto_buf plan = BUF_INIT(IMAGE_RECORDS_MAX * (IMAGE_RECORD_MAX + 4));
    static struct image_record r;
    FILE *from = size ? fmemopen((void *)(uintptr_t)data, size, "r") : NULL;

    if (from && archive_read(from, &a, NULL) == 0 && plan_make(&a, "x86_64", &plan, NULL) == 0)
        for (size_t at = 0; at < plan.len;) {
            uint32_t len;
            memcpy(&len, plan.data + at, sizeof len);
            at += sizeof len;
            if (len > plan.len - at || image_record_decode(plan.data + at, len, &r, NULL) < 0)
                abort();
            at += len;
        }
    if (from)
        fclose(from);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct index x;
    static struct manifest m;
    static struct saved_image s;
    static struct image_record r;
    struct json_t *hold = NULL;
    uint32_t count;

    if (index_read(data, size, &x, NULL) == 0)
        (void)index_choose(&x, "x86_64", NULL);
    if (manifest_read(data, size, &m, NULL) == 0)
        for (uint32_t i = 0; i < m.layer_count; i++)
            if (!image_is_hex(m.layers[i].blob))
                abort();
    if (config_read(data, size, &r, &hold, NULL) == 0)
        manifest_release(hold);
    (void)saved_read(data, size, 0, &s, &count, NULL);
    record(data, size);
    file(data, size);
    return 0;
}
