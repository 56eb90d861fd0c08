/* SPDX-License-Identifier: Apache-2.0 */
/* jansson's loops, which cppcheck cannot know without its headers. */
#define json_array_foreach(a, i, v) \
	for (i = 0; i < json_array_size(a) && (v = json_array_get(a, i)); i++)
#define json_object_foreach(o, k, v) \
	for (k = json_key_of(o); k && (v = json_object_get(o, k)); k = json_key_after(o, k))
