// SPDX-License-Identifier: Apache-2.0
// What a caller may ask of a load.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/backend.h"
#include "io/source.h"
#include "memory/block.h"
#include "memory/span.h"
#include "safetensors/header.h"

namespace infercluster::load {

// Elements [begin, end) of one dimension.
struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// One rank's part of a dimension: pieces of ceil(n / world) elements, as torch.chunk cuts; the last ranks may get fewer
// or none.
struct Shard {
  std::uint32_t dimension = 0;
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
  enum class WithoutDimension : std::uint8_t { refuse, whole };
  WithoutDimension without_dimension =
      WithoutDimension::refuse;  // what becomes of a tensor that lacks the dimension (a scalar)
};

// Which part of which tensors is wanted. The first rule whose pattern matches a tensor's name decides; no rule: the
// whole tensor.
struct SliceRule {
  std::string pattern;         // a name, or a shell pattern with * ? [ ]
  std::vector<Range> ranges;   // of the leading dimensions; the others are whole
  std::optional<Shard> shard;  // instead of ranges
};

// A tensor's bytes go to memory of the caller, whole or as sliced, in C order. It stays the caller's, who keeps it
// until the job has ended.
struct Into {
  std::string name;
  memory::Span destination;  // exactly the tensor's (slice's) bytes
};

enum class Verify : std::uint8_t {
  automatic,  // where checksums are found (a seal), check; elsewhere say "unverified"
  always,     // no checksums, or bytes we never see: an error
  never,
};

enum class PageCache : std::uint8_t {
  automatic,  // behind a direct load, fill the page cache when the model fits well within free memory
  keep,       // always fill it behind a direct load
  bypass,     // leave the page cache as it was found
};

// GPUDirect Storage: from storage to the device without a copy in host memory.
enum class Gds : std::uint8_t {
  automatic,  // where a probe of this mount shows it to be real and faster, for large loads
  always,     // where it is not real, an error that says why
  never,
};

// Where tensors go, when not to host memory.
struct DeviceOptions {
  int ordinal = 0;
  // Of the caller's allocator, by which he wants the memory of tensors: called by the thread that starts the load, and
  // of a stream by threads of ours. Empty: the driver's.
  memory::Allocate allocate;
  // A CUstream whose earlier work may still use that memory, and on which the caller uses the tensors of a stream:
  // copies wait for it, and so does the reuse of memory. 0: the default stream.
  std::uintptr_t stream = 0;
};

struct Options {
  std::vector<std::string>
      names;  // names or shell patterns; empty: all. A name or pattern that matches nothing is an error
  std::vector<SliceRule> slices;
  std::vector<Into> into;
  Verify verify = Verify::automatic;
  std::string seal_directory;  // where seals lie, when not beside the files
  std::optional<std::uint64_t>
      memory;  // bytes: load: beyond the tensors; stream: the window. Unset: 32 MiB; stream: 1 GiB or what is free
  PageCache page_cache = PageCache::automatic;
  io::DirectPolicy direct = io::DirectPolicy::automatic;
  io::BackendOptions backend;
  std::uint32_t tensor_alignment = 0;   // bytes that each tensor's address must be a multiple of; 0: its dtype's, and
                                        // 256 on a device
  std::optional<DeviceOptions> device;  // unset: host memory
  Gds gds = Gds::automatic;
  // That 99 of 100 reads from storage are to keep, from their submission on: while they do not, checkpoints that this
  // node's processes of this user write give way. Reads beside each other wait for each other: it is for the whole
  // queue, not for an idle device. 0: none, and nobody gives way.
  std::chrono::nanoseconds latency_target{0};
};

}  // namespace infercluster::load
