/* registry: fetches images from a registry, `paddock-remote registry`.
 *
 *   plan REF URL|-               finds the image for this machine; writes its record with its
 * length in front, as `image plan` does blob REF URL|- HEX FROM      writes the bytes of a blob
 * from there on
 *
 * URL is where the registry is, such as http://127.0.0.1:5000; "-": https and the name in REF.
 * Descriptor 3, where it is open, is a file with credentials as `docker login` writes it.
 *
 * It is a process of its own that holds the registry's password and nothing else: started by root
 * it becomes nobody before it asks. What it writes is believed by nobody: digests are checked where
 * the bytes are used. */
#pragma once

/* The whole of it: the exit status, which is 0, or REGISTRY_STATUS and the error's enum pd_code.
 * The reason of a failure goes to descriptor 2, one line. */
#define REGISTRY_STATUS 64
int registry_main(int argc, char **argv);

#define REGISTRY_AUTH_FD 3
