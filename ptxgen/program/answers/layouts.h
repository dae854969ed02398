/* Structures that the program gives room for, as driver_types.h of CUDA 13 lays them out. */
#ifndef LAYOUTS_H
#define LAYOUTS_H
#include <stddef.h>

/* cudaFuncAttributes */
typedef struct {
    size_t shared, constant, local;
    int threads, registers, ptx, binary, cache, most_dynamic, carveout, room[10];
} FunctionAttributes;

/* cudaDeviceProp */
typedef struct {
    char name[256], uuid[16], luid[8];
    unsigned node_mask;
    size_t memory, shared_per_block;
    int registers_per_block, warp;
    size_t pitch;
    int threads_per_block, block[3], grid[3];
    size_t constant;
    int major, minor;
    size_t texture_alignment, texture_pitch_alignment;
    int multiprocessors, integrated, maps_host_memory, textures[39];
    size_t surface_alignment;
    int concurrent_kernels, ecc, pci[3], tcc, engines, unified, bus_width, l2, l2_persisting;
    int threads_per_multiprocessor, priorities, l1_global, l1_local;
    size_t shared_per_multiprocessor;
    int registers_per_multiprocessor, managed, board, board_group, native_atomics, pageable, concurrent_managed;
    int preemption, registered, cooperative;
    size_t shared_optin;
    int page_tables, direct_managed, blocks_per_multiprocessor, access_policy;
    size_t shared_reserved;
    int registers_host, sparse, registers_read_only, timelines, pools, direct[3], handles, deferred, ipc, cluster;
    int function_pointers, numa_config, numa, mps, host_numa, room[59];
} Properties;
_Static_assert(sizeof(Properties) == 1008 && offsetof(Properties, surface_alignment) == 552 && offsetof(Properties, shared_optin) == 672
                   && offsetof(Properties, cluster) == 748
                   && offsetof(Properties, pools) == 720 && offsetof(Properties, host_numa) == 768, "as cudaDeviceProp of CUDA 13");
#endif
