// Put before every C++ source of llama.cpp where GCC compiles it for a processor with AMX.
// GCC's own macros do not tell it that these instructions read memory, so it may leave out the stores before them, and
// batches crash or come out wrong: versions before 13.3 lose the tile configuration (its bug 114098).
#pragma once
#ifdef __AMX_TILE__
#include <immintrin.h>

#undef _tile_loadd
#undef _tile_loadconfig
#define _tile_loadd(tile, base, stride) AMX_LOAD(tile, base, stride)
#define AMX_LOAD(tile, base, stride)                           \
    __asm__ volatile("tileloadd\t(%0,%1,1), %%tmm" #tile       \
                     :                                         \
                     : "r"((const void *)(base)), "r"((long)(stride)) \
                     : "memory")
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg\t%0" : : "m"(*(const char(*)[64])(config)) : "memory")
#endif
