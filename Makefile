# A thin layer over meson: which tree, in which order. How things are built is in meson.build.
#
#   make            release into build/: mayhem, mayhem-agent, and their symbols beside them
#   make demo       break something, and see it mended
#   make test       every test, on the release and on the sanitizer tree
#   make torture    sweeps, races, fuzzing: long, seeded by MAYHEM_SEED
#   make bench      the figures
#   make check      style, module order, promises
#   make format     let clang-format rewrite the sources
#   make install    PREFIX=/usr/local DESTDIR=
#
# ARGS goes to the test runner: make test ARGS='--only system -k pause'

MESON ?= meson
NINJA ?= ninja
FUZZ_CC ?= $(firstword $(shell command -v clang-14 clang))
MESON_FLAGS ?=
ARGS ?=

PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
UNITDIR ?= $(PREFIX)/lib/systemd
MANDIR ?= $(PREFIX)/share/man
DESTDIR ?=
PROGRAMS = mayhem mayhem-agent
UNITS = mayhem-recover.service mayhem-recover.timer

# ninja runs in parallel by itself; two package managers at once would not.
.NOTPARALLEL:
.PHONY: all demo test bench torture check format install uninstall clean
.PHONY: release sanitized fuzzers deps-build deps-test deps-bench

all: deps-build release

demo: all
	@scripts/demo

test: deps-test release sanitized
	@scripts/test $(ARGS)

torture: deps-test release sanitized fuzzers
	@scripts/test torture $(ARGS)

bench: deps-bench release
	@bench/run

check:
	@scripts/check-style
	@scripts/check-modules
	@scripts/check-promises

format:
	@scripts/check-style --fix

deps-build deps-test deps-bench: deps-%:
	@scripts/deps $*

release: build/build.ninja
	@$(NINJA) -C build
	@scripts/split-debug $(addprefix build/,$(PROGRAMS))

sanitized: build-san/build.ninja
	@$(NINJA) -C build-san

fuzzers: build-fuzz/build.ninja
	@$(NINJA) -C build-fuzz

build/build.ninja:
	@$(MESON) setup build --buildtype=debugoptimized $(MESON_FLAGS)

build-san/build.ninja:
	@$(MESON) setup build-san --buildtype=debug -Dsanitizers=true \
		-Db_sanitize=address,undefined -Db_lundef=false $(MESON_FLAGS)

build-fuzz/build.ninja:
	@CC=$(FUZZ_CC) $(MESON) setup build-fuzz --buildtype=debugoptimized -Dsanitizers=true \
		-Dfuzzers=true -Db_sanitize=address,undefined -Db_lundef=false $(MESON_FLAGS)

install: all
	install -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(UNITDIR)/system $(DESTDIR)$(UNITDIR)/user
	install -m 755 $(addprefix build/,$(PROGRAMS)) $(DESTDIR)$(BINDIR)
	@for unit in $(UNITS) $(addprefix user/,$(UNITS)); do \
		case $$unit in user/*) to=$$unit ;; *) to=system/$$unit ;; esac; \
		sed 's|/usr/local/bin|$(BINDIR)|' dist/systemd/$$unit >$(DESTDIR)$(UNITDIR)/$$to && \
		chmod 644 $(DESTDIR)$(UNITDIR)/$$to || exit 1; \
	done
	@for page in man/*.[1-8]; do \
		[ -e "$$page" ] || continue; \
		install -D -m 644 $$page $(DESTDIR)$(MANDIR)/man$${page##*.}/$${page##*/} || exit 1; \
	done

# Nothing is removed while a fault is live or a lease is dirty: the agent is what could mend it.
uninstall:
	@[ -n "$(DESTDIR)" ] || dist/pre-remove $(BINDIR)/mayhem-agent
	rm -f $(addprefix $(DESTDIR)$(BINDIR)/,$(PROGRAMS))
	rm -f $(addprefix $(DESTDIR)$(UNITDIR)/system/,$(UNITS))
	rm -f $(addprefix $(DESTDIR)$(UNITDIR)/user/,$(UNITS))
	@for page in man/*.[1-8]; do \
		rm -f $(DESTDIR)$(MANDIR)/man$${page##*.}/$${page##*/}; \
	done

clean:
	rm -rf build build-san build-fuzz
