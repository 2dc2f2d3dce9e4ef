/* xml_text: a text out of the XML that some APIs of AWS answer. Pure. */
#pragma once

#include <stddef.h>

/* The text of the first element of this name that has no elements in it, with its five entities
 * resolved; "" when there is none. Cut off where it is too long. Returns where the element ends, 0
 * when there is none: the next search can begin there. */
size_t xml_text(const char *xml, size_t len, const char *name, char *ret, size_t size);
