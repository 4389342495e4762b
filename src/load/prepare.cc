// SPDX-License-Identifier: Apache-2.0
#include "load/prepare.h"

#include <algorithm>
#include <bit>

#include "base/units.h"
#include "load/blob_check.h"
#include "os/limits.h"

namespace infercluster::load {
namespace {

constexpr std::uint64_t kGranularity = 4096;
constexpr std::uint32_t kDeviceAlignment = 256;  // as CUDA's allocators give, and kernels expect
// Of the rings. Copies to a device hold their slots while further reads are under way.
constexpr std::uint64_t kSlotsMax = 8;
constexpr std::uint64_t kDeviceSlotsMax = 14;
constexpr std::uint64_t kStreamSlots = 4;

// Requests, as measured on virtio and NVMe: large enough that the device is busy with few, small enough that several
// are in flight. Copies from the page cache go in huge pages that fit the second-level cache, where they are cleared
// and filled at once.
std::uint64_t transfer_bytes_for(io::FileMode mode, std::string_view backend) {
  if (mode == io::FileMode::resident) return 2 * kMiB;
  if (mode == io::FileMode::buffered) return 4 * kMiB;
  return backend == "io_uring" ? 8 * kMiB : 4 * kMiB;
}

// A ring slot, so that a few fit what the budget leaves.
std::uint64_t staged_bytes_within(std::uint64_t budget) {
  const std::uint64_t left = budget - std::min(budget, kBookkeepingBytes);
  return std::bit_floor(std::clamp<std::uint64_t>(left / 4, 1, 4 * kMiB));
}

std::string place(int device) {
  return device < 0 ? "the host" : "CUDA device " + std::to_string(device);
}

struct ByteRange {
  std::uint64_t begin = UINT64_MAX;
  std::uint64_t end = 0;
};

class Preparer {
 public:
  Preparer(std::shared_ptr<const Repository> repository, const Options& options, std::string_view backend,
           Purpose purpose, const Target& target)
      : options_(options), backend_(backend), purpose_(purpose), target_(target) {
    prepared_.repository = std::move(repository);
    prepared_.on_host = target.kind() == memory::Kind::host;
  }

  Result<Prepared> run() {
    IC_CHECK(check_options());
    prepared_.notices = prepared_.repository->warnings;
    IC_TRY(std::vector<WantedTensor> wanted, select_tensors(prepared_.tables(), options_));
    IC_CHECK(open_readers(wanted));
    IC_CHECK(plan(std::move(wanted)));
    IC_CHECK(check_blobs());
    return std::move(prepared_);
  }

 private:
  Status check_options() const {
    const std::uint32_t alignment = options_.tensor_alignment;
    if (alignment != 0 && (!is_power_of_two(alignment) || alignment > kGranularity)) {
      return Error(ErrorCode::invalid_argument,
                   "a tensor alignment of " + std::to_string(alignment) + " is not a power of two up to 4096");
    }
    if (options_.memory && *options_.memory == 0) {
      return Error(ErrorCode::invalid_argument, "a memory budget of 0 bytes holds nothing")
          .with_hint("Leave it out for the default, or give at least " +
                     format_bytes(kBookkeepingBytes + 4 * kGranularity));
    }
    for (const Into& into : options_.into) {
      if (into.destination.kind != target_.kind() || into.destination.device != target_.device()) {
        return Error(ErrorCode::invalid_argument, "its destination is in memory of " + place(into.destination.device) +
                                                      ", and the load goes to " + place(target_.device()))
            .with_tensor(into.name)
            .with_hint("Name the destination's device as the load's device");
      }
    }
    return {};
  }

  Status open_readers(const std::vector<WantedTensor>& wanted) {
    const auto& shards = prepared_.repository->shards();
    std::vector<ByteRange> ranges(shards.size());
    for (const WantedTensor& one : wanted) {
      for (const Rows& rows : one.part.rows) {
        ByteRange& range = ranges[one.ref.shard];
        range.begin = std::min(range.begin, rows.file_offset);
        range.end = std::max(range.end, rows.file_end());
      }
    }
    prepared_.readers.resize(shards.size());
    for (std::size_t i = 0; i < shards.size(); ++i) {
      if (ranges[i].end == 0) continue;
      ShardReader& reader = prepared_.readers[i];
      // The repository's own descriptor: with one more for each, a thousand shards would be over the usual limit.
      IC_TRY(reader.source, io::FileSource::open(shards[i].path, {prepared_.repository, &shards[i].fd},
                                                 {options_.direct, ranges[i].begin, ranges[i].end}));
      if (reader.source->identity() != shards[i].identity) {
        return Error(ErrorCode::changed, "changed since its header was read")
            .with_path(shards[i].path)
            .with_hint("Load it again once it is at rest");
      }
      reader.sources = {reader.source.get()};
      IC_CHECK(find_checksums(shards[i], reader));
    }
    return {};
  }

  Status find_checksums(const RepositoryShard& shard, ShardReader& reader) const {
    if (options_.verify == Verify::never) {
      reader.verification = "unverified: not asked for";
      return {};
    }
    auto seal = find_seal(shard.path, options_.seal_directory, shard.identity.size);
    if (seal.ok()) {
      reader.seal = std::move(*seal);
      reader.verification = "seal";
      return {};
    }
    if (seal.error().code() != ErrorCode::not_found) return std::move(seal).error();
    const BlobName blob = blob_name_of(shard.resolved_path);
    if (options_.verify == Verify::automatic) {
      reader.verification = blob.kind == BlobName::Kind::sha256 ? "unverified: its SHA-256 is checked when asked for"
                                                                : "unverified: no seal";
      return {};
    }
    if (blob.kind == BlobName::Kind::sha256) {
      reader.sha256 = blob.hex;
      reader.verification = "sha256";
      return {};
    }
    return Error(ErrorCode::unsupported, "has no checksums to verify against")
        .with_path(shard.path)
        .with_hint("Run `infercluster seal` once on a copy that you trust");
  }

  Status plan(std::vector<WantedTensor> wanted) {
    PlanOptions plan_options;
    plan_options.landing = prepared_.on_host;
    plan_options.tensor_alignment = std::max(options_.tensor_alignment, prepared_.on_host ? 0 : kDeviceAlignment);
    std::uint64_t granularity_max = kGranularity;
    for (std::size_t i = 0; i < prepared_.readers.size(); ++i) {
      const ShardReader& reader = prepared_.readers[i];
      ShardTraits traits;
      traits.file_size = prepared_.repository->shards()[i].identity.size;
      if (reader.source != nullptr) {
        traits.granularity = std::max<std::uint64_t>(kGranularity, reader.source->alignment());
        if (reader.seal) traits.granularity = std::max(traits.granularity, kSealBlockBytes);
        traits.transfer_bytes = std::max(transfer_bytes_for(reader.source->mode(), backend_), traits.granularity);
      }
      granularity_max = std::max(granularity_max, traits.granularity);
      plan_options.check_headers = plan_options.check_headers || reader.seal.has_value();
      plan_options.shards.push_back(traits);
    }
    const std::uint64_t budget =
        options_.memory.value_or(prepared_.on_host ? kWorkingBytesDefault : kDeviceWorkingBytesDefault);
    plan_options.staged_bytes = std::max(granularity_max, staged_bytes_within(budget));
    if (purpose_ == Purpose::stream) {
      IC_CHECK(size_window(wanted));
      plan_options.unit_bytes = std::clamp<std::uint64_t>(prepared_.window / 8, 64 * kKiB, 64 * kMiB);
      plan_options.staged_bytes = std::max(granularity_max, staged_bytes_within(prepared_.window / 4));
    }
    IC_TRY(prepared_.plan, make_plan(prepared_.tables(), std::move(wanted), plan_options));
    return purpose_ == Purpose::load ? size_ring(plan_options.staged_bytes, budget)
                                     : check_window(plan_options.staged_bytes);
  }

  Status size_ring(std::uint64_t staged_bytes, std::uint64_t budget) {
    const std::uint64_t slots_max = prepared_.on_host ? kSlotsMax : kDeviceSlotsMax;
    const std::uint64_t fixed = prepared_.working_bytes();  // without a ring yet
    const std::uint64_t needed = fixed + (prepared_.plan.staged ? 2 * staged_bytes : 0);
    if (budget < needed && (options_.memory || prepared_.plan.staged)) {
      if (options_.memory) {
        return Error(ErrorCode::too_large, "a memory budget of " + format_bytes(budget) +
                                               " is too small: this load needs at least " + format_bytes(needed) +
                                               " (" + std::to_string(needed) + " bytes) beyond its tensors");
      }
      budget = needed;  // no budget was asked for
    }
    if (!prepared_.plan.staged) return {};
    prepared_.slot_bytes = staged_bytes;
    std::uint64_t staged_transfers = 0;
    for (const Unit& unit : prepared_.plan.units) {
      for (const PlannedTransfer& transfer : unit.transfers) staged_transfers += transfer.landed ? 0 : 1;
    }
    const std::uint64_t most = std::min(slots_max, std::max<std::uint64_t>(2, staged_transfers));
    prepared_.slots = static_cast<unsigned>(std::clamp<std::uint64_t>((budget - fixed) / staged_bytes, 2, most));
    return {};
  }

  // The window holds blocks and the ring.
  Status size_window(const std::vector<WantedTensor>& wanted) {
    prepared_.window = options_.memory.value_or(kStreamWindowDefault);
    if (options_.memory) return {};
    std::uint64_t largest = 0;
    for (const WantedTensor& one : wanted) largest = std::max(largest, one.part.bytes);
    prepared_.window = std::max(std::min(prepared_.window, target_.free_bytes() / 4), 2 * largest + 16 * kMiB);
    return {};
  }

  Status check_window(std::uint64_t staged_bytes) {
    std::uint64_t largest = 0;
    for (const Unit& unit : prepared_.plan.units) largest = std::max(largest, unit.arena_bytes);
    if (prepared_.plan.staged) {
      prepared_.slot_bytes = staged_bytes;
      const std::uint64_t most = prepared_.on_host ? kStreamSlots : kDeviceSlotsMax;
      prepared_.slots =
          static_cast<unsigned>(std::clamp<std::uint64_t>(prepared_.window / 8 / staged_bytes, kStreamSlots, most));
    }
    const std::uint64_t needed = kBookkeepingBytes + prepared_.ring_bytes() + largest;
    if (prepared_.window < needed) {
      return Error(ErrorCode::too_large, "a memory window of " + format_bytes(prepared_.window) +
                                             " is too small: the largest tensor needs " + format_bytes(needed) + " (" +
                                             std::to_string(needed) + " bytes)");
    }
    return {};
  }

  Status check_blobs() const {
    for (const Unit& unit : prepared_.plan.units) {
      const ShardReader& reader = prepared_.readers[unit.shard];
      if (reader.sha256.empty() || covers_whole_file(prepared_.plan, unit, *prepared_.tables().shards[unit.shard]))
        continue;
      return Error(ErrorCode::unsupported,
                   "is named by the SHA-256 of the whole file, which proves nothing of a part of it")
          .with_path(reader.source->name())
          .with_hint("Run `infercluster verify` and then `infercluster seal` on it, or load it whole");
    }
    return {};
  }

  const Options& options_;
  const std::string_view backend_;
  const Purpose purpose_;
  const Target& target_;
  Prepared prepared_;
};

}  // namespace

Result<Prepared> prepare(std::shared_ptr<const Repository> repository, const Options& options, std::string_view backend,
                         Purpose purpose, const Target& target) {
  return Preparer(std::move(repository), options, backend, purpose, target).run();
}

std::vector<FileReport> file_reports(const Prepared& prepared) {
  std::vector<FileReport> reports;
  const auto& shards = prepared.repository->shards();
  for (std::size_t i = 0; i < shards.size(); ++i) {
    FileReport report;
    report.path = shards[i].path;
    report.mode = "none";
    report.reason = "nothing of it is wanted";
    const ShardReader& reader = prepared.readers[i];
    if (reader.source != nullptr) {
      report.mode = io::name_of(reader.source->mode());
      report.reason = reader.source->reason();
      if (reader.gds != nullptr) {
        report.mode = "gds";
        const std::string refusal = reader.gds->refusal();
        report.reason = reader.gds_reason + (refusal.empty() ? "" : "; the rest through host memory: " + refusal);
      } else if (!reader.gds_reason.empty() && reader.gds_reason != report.reason) {
        report.reason += "; " + reader.gds_reason;
      }
      report.verification = reader.verification;
    }
    reports.push_back(std::move(report));
  }
  for (const PlannedTensor& tensor : prepared.plan.tensors) reports[tensor.ref.shard].bytes += tensor.bytes;
  return reports;
}

Status check_unchanged(const Prepared& prepared) {
  for (const ShardReader& reader : prepared.readers) {
    if (reader.source != nullptr) IC_CHECK(reader.source->check_unchanged());
  }
  return {};
}

}  // namespace infercluster::load
