#include "server/health.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

HealthInput ready_input() {
  HealthInput input;
  input.model_set = true;
  input.timeout_s = 10;
  return input;
}

TEST(Health, states) {
  EngineStatus engine;
  EXPECT_EQ(report_health(engine, ready_input()).body["status"], "loading");
  engine.state = EngineState::kReady;
  engine.beat();
  EXPECT_EQ(report_health(engine, ready_input()).http_status, 200);
  HealthInput input = ready_input();
  input.model_set = false;
  EXPECT_EQ(report_health(engine, input).body["status"], "loading");
  input = ready_input();
  input.draining = true;
  EXPECT_EQ(report_health(engine, input).body["status"], "draining");
  engine.state = EngineState::kDead;
  EXPECT_EQ(report_health(engine, input).body["status"], "dead");
  EXPECT_EQ(report_health(engine, input).refusal.code, "shutting_down");
  input.draining = false;
  EXPECT_EQ(report_health(engine, input).refusal.code, "unavailable");
}

TEST(Health, silence_matters_only_with_work) {
  EngineStatus engine;
  engine.state = EngineState::kReady;
  engine.heartbeat_ns = now_ns() - 11'000'000'000;
  EXPECT_EQ(report_health(engine, ready_input()).http_status, 200);
  HealthInput queued = ready_input();
  queued.work_pending = true;
  EXPECT_EQ(report_health(engine, queued).body["status"], "hung");
  queued.work_since_ns = now_ns();  // an idle engine was silent, and has work only now
  EXPECT_EQ(report_health(engine, queued).http_status, 200);
  queued.work_since_ns = now_ns() - 11'000'000'000;
  EXPECT_EQ(report_health(engine, queued).body["status"], "hung");
  engine.idle = false;
  EXPECT_EQ(report_health(engine, ready_input()).body["status"], "hung");
  EXPECT_FALSE(report_health(engine, ready_input()).admits);
  engine.beat();
  EXPECT_EQ(report_health(engine, queued).http_status, 200);
}

}  // namespace
}  // namespace tailrace
