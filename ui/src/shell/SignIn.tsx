import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { Button } from "../design/Button";
import { TextField } from "../design/Field";
import { Logo } from "../design/Icon";
import { access, readMe, signIn, trouble } from "../lib/session";

function Form({ words }: { words: string }): JSX.Element {
  const token = useSignal("");
  const wrong = useSignal<string | null>(null);
  const busy = useSignal(false);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (busy.value) return;
    const text = token.value.trim();
    if (!text) {
      wrong.value = "Paste a token.";
      return;
    }
    busy.value = true;
    wrong.value = await signIn(text);
    busy.value = false;
  };
  return (
    <form class="form" noValidate onSubmit={(event) => void submit(event)}>
      <TextField
        label="Token"
        type="password"
        autocomplete="current-password"
        first
        value={token.value}
        onInput={(value) => (token.value = value)}
        wrong={wrong.value}
        hint={words}
      />
      <Button kind="primary" type="submit" disabled={busy.value}>
        Sign in
      </Button>
    </form>
  );
}

/** The page before a sign-in. The token becomes a cookie that scripts cannot read. */
export function SignIn(): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    document.title = "Sign in · Treadle";
    box.current?.querySelector("input")?.focus();
  }, []);
  return (
    <main class="gate" id="main">
      <div class="panel pad stack" ref={box}>
        <h1 class="row">
          <Logo /> Sign in to Treadle
        </h1>
        <Form words="A token of this server, with the scope “read” to look and “operate” to act." />
        <p class="small quiet">
          The person who runs the server makes one with <code>treadle token</code>.
        </p>
      </div>
    </main>
  );
}

/** Over the page, when the session ended while somebody was reading. Texts typed elsewhere on the page stay. */
export function Expired(): JSX.Element {
  const box = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    box.current?.showModal();
    box.current?.querySelector("input")?.focus();
  }, []);
  return (
    <dialog ref={box} aria-labelledby={id} onCancel={(event) => event.preventDefault()}>
      <header>
        <h2 id={id}>Your session has ended</h2>
        <Button kind="plain" onClick={() => (access.value = "out")}>
          Sign in later
        </Button>
      </header>
      <div class="body">
        <Form words="Sign in again. The page stays as it is." />
      </div>
    </dialog>
  );
}

export function Unreachable(): JSX.Element {
  return (
    <main class="gate" id="main">
      <div class="panel pad stack" role="alert">
        <h1>No connection</h1>
        <p>{trouble.value}</p>
        <div>
          <Button kind="primary" onClick={readMe}>
            Try again
          </Button>
        </div>
      </div>
    </main>
  );
}
