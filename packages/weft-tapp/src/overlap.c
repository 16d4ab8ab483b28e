/* Whether D shares memory with another tensor of an execution. */
#include "product.h"

/* Where the last run starts that starts no later than a byte; -1 where none does. Steps nest, so the longest goes first. */
static int64_t run_before(const struct cover *cover, int64_t byte)
{
    int64_t start = 0;
    int mode;
    if (byte < 0)
        return -1;
    for (mode = 0; mode < cover->count; mode++) {
        int64_t index = (byte - start) / cover->steps[mode];
        if (index > cover->extents[mode] - 1)
            index = cover->extents[mode] - 1;
        start += index * cover->steps[mode];
    }
    return start;
}

/* Each run of D is looked for among those of the other, unless one lies wholly before the other. Of an operand whose steps
 * do not nest (windows that overlap) a shared byte may be missed; none is invented. */
bool overlapping(const struct cover *d, const char *at_d, const struct cover *other, const char *at_other)
{
    int64_t between = (at_d + d->first) - (at_other + other->first), index, total = 1;
    int mode;
    if (between >= other->past - other->first || -between >= d->past - d->first)
        return false;
    for (mode = 0; mode < d->count; mode++)
        total *= d->extents[mode];
    for (index = 0; index < total; index++) {
        int64_t start = between, rest = index, found;
        for (mode = d->count - 1; mode >= 0; mode--) {
            start += rest % d->extents[mode] * d->steps[mode];
            rest /= d->extents[mode];
        }
        found = run_before(other, start + d->run - 1);
        if (found >= 0 && found + other->run > start)
            return true;
    }
    return false;
}
