// SPDX-License-Identifier: Apache-2.0
#include "load/gds_choice.h"

#include <algorithm>
#include <vector>

#include "io/engine.h"

namespace infercluster::load {
namespace {

// cuFile's calls wait: as many threads as slots.
constexpr unsigned kSlots = 16;

// Why a file's bytes have to pass the host, whatever GDS can do; empty: they need not.
std::string host_reason(const ShardReader& reader, const Options& options) {
  if (!reader.sha256.empty()) return "its SHA-256 is checked on the host";
  if (options.gds == Gds::always) return "";
  if (reader.seal) return "its seal is checked on the host";
  if (reader.source->mode() != io::FileMode::direct) return reader.source->reason();
  return "";
}

// The readers that GDS may serve, the largest file first.
std::vector<ShardReader*> candidates_of(Prepared& prepared, const Options& options) {
  std::vector<ShardReader*> candidates;
  for (ShardReader& reader : prepared.readers) {
    if (reader.source == nullptr) continue;
    reader.gds_reason = host_reason(reader, options);
    if (reader.gds_reason.empty()) candidates.push_back(&reader);
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const ShardReader* a, const ShardReader* b) { return a->source->size() > b->source->size(); });
  return candidates;
}

}  // namespace

Result<std::unique_ptr<GdsReader>> choose_gds(const GdsSituation& situation, Prepared& prepared) {
  const Options& options = situation.options;
  if (options.gds == Gds::always && options.verify == Verify::always) {
    return Error(ErrorCode::invalid_argument,
                 "verification was demanded together with GPUDirect Storage, whose bytes the host never sees")
        .with_hint("Leave one of them to \"auto\"");
  }
  const std::vector<ShardReader*> candidates = candidates_of(prepared, options);
  GdsBook* const book = situation.environment.gds;
  if (candidates.empty() || book == nullptr || prepared.slot_bytes == 0) return std::unique_ptr<GdsReader>();
  std::uint64_t bytes = 0;
  for (const ShardReader* reader : candidates) bytes += reader->source->size();
  const auto open_engine = [&]() -> Result<std::unique_ptr<io::Engine>> {
    IC_TRY(io::ChosenBackend chosen, situation.environment.open_backend(options.backend));
    return std::make_unique<io::Engine>(std::move(chosen.backend), *situation.environment.clock, io::Engine::Options{});
  };
  IC_TRY(const GdsBook::Answer answer, book->ask({options.gds, situation.target, *candidates.front()->source, bytes,
                                                  prepared.slot_bytes, open_engine, *situation.environment.clock}));
  for (ShardReader* const reader : candidates) reader->gds_reason = answer.reason;
  if (answer.cufile == nullptr) return std::unique_ptr<GdsReader>();
  IC_TRY(std::unique_ptr<GdsReader> gds, GdsReader::open(answer.cufile, {prepared.slot_bytes, kSlots, kSlots}));
  if (!gds->unregistered().empty()) prepared.notices.push_back("GDS without a registered ring: " + gds->unregistered());
  for (ShardReader* const reader : candidates) {
    auto source = gds->open_source(*reader->source);
    if (!source.ok()) {  // this file goes by the ring of host memory
      if (options.gds == Gds::always) return std::move(source).error();
      reader->gds_reason = source.error().message();
      continue;
    }
    reader->gds = std::move(*source);
    reader->sources = {reader->gds.get()};
    reader->seal.reset();
    reader->verification = "unverified: by GPUDirect Storage its bytes do not pass the host";
  }
  const bool all = std::all_of(prepared.readers.begin(), prepared.readers.end(), [](const ShardReader& reader) {
    return reader.source == nullptr || reader.gds != nullptr;
  });
  if (all) prepared.slots = 0;  // no ring of host memory is needed
  return gds;
}

}  // namespace infercluster::load
