// SPDX-License-Identifier: Apache-2.0
#include "load/gds_book.h"

#include <algorithm>

#include "base/units.h"
#include "load/gds.h"
#include "load/gds_probe.h"

namespace infercluster::load {
namespace {

constexpr std::uint64_t kProbeBytes = 64 * kMiB;
constexpr unsigned kProbeSlots = 8;

std::string rate_text(double rate) {
  return format_bytes(static_cast<std::uint64_t>(rate)) + "/s";
}

}  // namespace

Result<GdsBook::Answer> GdsBook::ask(const Question& question) {
  if (question.policy == Gds::never) return Answer{nullptr, "GPUDirect Storage is switched off"};
  const std::pair key{question.largest.identity().device, question.target.device()};
  const std::lock_guard lock(mutex_);
  if (question.policy == Gds::automatic) {
    if (const auto known = answers_.find(key); known != answers_.end()) return known->second;
    if (question.bytes < load_min_) {
      return Answer{nullptr, "a load of less than " + format_bytes(load_min_) + " does not pay for opening cuFile"};
    }
  }
  auto cufile = open(question.target.gpu());
  if (!cufile.ok()) {
    if (question.policy == Gds::always) return std::move(cufile).error();
    return answers_[key] = {nullptr, "no GDS: " + cufile.error().message()};
  }
  if (!gpu::is_direct((*cufile)->mode())) {
    const std::string what = "no GDS: " + (*cufile)->text();
    if (question.policy == Gds::automatic) return answers_[key] = {nullptr, what};
    return Error(ErrorCode::unsupported, "GPUDirect Storage was demanded, and there is " + what)
        .with_path(question.largest.name())
        .with_hint("`infercluster doctor` says what is missing");
  }
  if (question.policy == Gds::always) return Answer{*cufile, (*cufile)->text() + ", as was demanded"};
  auto answer = measure(question, *cufile);
  // A probe that fails says nothing against the load, which has another way.
  if (!answer.ok()) return answers_[key] = {nullptr, "the probe of GDS failed: " + answer.error().message()};
  return answers_[key] = std::move(*answer);
}

Result<std::shared_ptr<gpu::CuFile>> GdsBook::open(const std::shared_ptr<gpu::Device>& device) {
  std::shared_ptr<gpu::CuFile>& known = open_[device->ordinal()];
  if (known == nullptr) {
    IC_TRY(known, gpu::CuFile::open(device));
  }
  return known;
}

// Both ways read their own part of the file, so that neither finds what the other has left in a cache of the device.
Result<GdsBook::Answer> GdsBook::measure(const Question& question, const std::shared_ptr<gpu::CuFile>& cufile) {
  const std::uint64_t whole = align_down(question.largest.size(), question.slot_bytes);
  const std::uint64_t part = std::min(kProbeBytes, align_down(whole / 2, question.slot_bytes));
  if (part == 0) return Answer{nullptr, "the files are too small to probe GDS"};
  IC_TRY(const std::unique_ptr<GdsReader> gds,
         GdsReader::open(cufile, {question.slot_bytes, kProbeSlots, kProbeSlots}));
  IC_TRY(const std::unique_ptr<GdsSource> by_gds, gds->open_source(question.largest));
  IC_TRY(const std::unique_ptr<io::FileSource> by_host,
         io::FileSource::open(question.largest.name(), nullptr, {io::DirectPolicy::automatic, 0, part}));
  IC_TRY(memory::Ring host_ring, question.target.make_ring(question.slot_bytes, kProbeSlots));
  memory::Ring device_ring = gds->take_ring();
  IC_TRY(const auto scratch, gpu::DeviceMemory::allocate(question.target.gpu(), question.slot_bytes));
  IC_TRY(const std::unique_ptr<memory::Copier> copier, question.target.make_copier());
  // Of its own: a ring of the kernel's stays with the thread that used it first.
  IC_TRY(const std::unique_ptr<io::Engine> engine, question.open_engine());
  IC_TRY(const double host,
         probe_rate({*by_host, host_ring, *copier}, {0, part}, scratch->span(), *engine, question.clock));
  IC_TRY(const double direct,
         probe_rate({*by_gds, device_ring, *copier}, {part, 2 * part}, scratch->span(), *engine, question.clock));
  if (!by_gds->refusal().empty()) return Answer{nullptr, "cuFile refused to read: " + by_gds->refusal()};
  const std::string figures = "GDS " + rate_text(direct) + ", through host memory " + rate_text(host);
  if (direct > host) return Answer{cufile, cufile->text() + ": " + figures + ", as probed"};
  return Answer{nullptr, "faster than GDS here: " + figures + ", as probed"};
}

}  // namespace infercluster::load
