// Runs the unit tests of the core. A test that does not end is named and ends the run: nothing here
// may hang.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>

namespace {

// Sanitizers make those tests slow that compute.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr unsigned kTestLimitS = 600;
#else
constexpr unsigned kTestLimitS = 120;
#endif

// Read by the signal handler; names live as long as the program.
const char* volatile current_test = "";

void write_text(const char* text) {
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) {
    std::_Exit(EXIT_FAILURE);
  }
}

// Signal handler: only async-signal-safe calls. Abort, so that a debugger or core dump shows where
// every thread stood.
void on_alarm(int) {
  write_text("\nerror: this test did not end within its time limit: ");
  write_text(current_test);
  write_text("\n");
  std::abort();
}

struct TimeLimit : doctest::IReporter {
  explicit TimeLimit(const doctest::ContextOptions&) { std::signal(SIGALRM, on_alarm); }

  void test_case_start(const doctest::TestCaseData& test) override {
    current_test = test.m_name;
    alarm(kTestLimitS);
  }
  void test_case_end(const doctest::CurrentTestCaseStats&) override { alarm(0); }

  void test_run_end(const doctest::TestRunStats& stats) override {
    if (stats.numTestCasesPassingFilters == 0) {
      write_text("error: no test ran\n");
      std::_Exit(EXIT_FAILURE);
    }
  }

  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};

REGISTER_LISTENER("time_limit", 1, TimeLimit);

}  // namespace
