# make app     the workbench in the browser; MODEL=path.gguf opens another model, CMAKE_ARGS=-DGGML_CUDA=on builds for a GPU,
#              TORCH_INDEX=https://download.pytorch.org/whl/cpu installs PyTorch's small CPU build
# make test    all checks, and the tests that are not slow: about a quarter of an hour on two cores
# make test-all  the slow ones too: attacks, faults, ends of processes, every page in the browser
# make clients  the API with programs of others (openai, LangChain, LiteLLM, lm-eval, guidellm, schemathesis …), which it
#              installs into .venv-clients and .venv-inspect (3 GB)
# make check   format, lint, types, import rules and the API reference only
# make docs    writes the API reference to build/docs
# make pictures  takes the README's pictures anew
# make peers   builds llama.cpp's own programs, for comparison
# make speed   compares our speed with theirs; ARGS="single many" chooses programs, ARGS=--help explains

# The tests start hundreds of programs, each of which would compile the engine again if bytecode were not cached.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: app test test-all clients check docs pictures speed peers

app:
	@.ci/prepare app
	@if [ -n "$$MODEL" ]; then LOGITBENCH_MODEL="$$(realpath -- "$$MODEL")"; export LOGITBENCH_MODEL; fi; \
	exec .venv/bin/streamlit run app.py

# Parallel tests wait passively: a thread that spins while it waits takes the core from another one.
PARALLEL = OMP_WAIT_POLICY=passive .venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# Continuous integration runs each failed test a second time, with nothing beside it; its log has both. A test that passes
# only then depends on the machine's pauses: a defect to mend, and no reason to stop the change under test. Other exit
# statuses than 1 (tests failed) mean that tests did not run.
AGAIN = || { [ $$? -eq 1 ] && [ -n "$$CI" ] && echo "The failed tests a second time:" && \
	env -u SLOW_TESTS_UNTIL .venv/bin/python -m pytest --last-failed --last-failed-no-failures none; }

test:
	@.ci/prepare browser
	@$(MAKE) --no-print-directory check
	$(PARALLEL) -m "not slow and not alone" $(AGAIN)

test-all: test
	$(PARALLEL) -m "slow and not alone" $(AGAIN)
	.venv/bin/python -m pytest -m alone $$(grep -rl --include='test_*.py' 'pytest.mark.alone' tests) $(AGAIN)

clients:
	@.ci/prepare clients
	.venv/bin/python -m pytest tests/clients

check:
	@.ci/prepare test
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	.venv/bin/mypy
	.venv/bin/lint-imports
	@$(MAKE) --no-print-directory docs

# Warnings are errors: a name that cannot be resolved, a docstring that cannot be rendered.
docs:
	@.ci/prepare test
	.venv/bin/python -W error -m pdoc --docformat markdown --no-show-source --no-search --output-directory build/docs \
		engine '!engine\..*'

pictures:
	@.ci/prepare browser
	.venv/bin/python -m tests.pictures

peers:
	@.ci/prepare peers

speed:
	@.ci/prepare test
	.venv/bin/python -m tests.speed $(ARGS)
