import type { JSX } from "preact";

import { ChatPage } from "./chat/chat-page.tsx";
import { shownDialog } from "./dialogs/dialog-state.ts";
import { HelpDialog } from "./dialogs/help.tsx";
import { KeyDialog } from "./dialogs/key-dialog.tsx";
import { PreferencesDialog } from "./dialogs/preferences.tsx";
import { SearchDialog } from "./dialogs/search.tsx";
import { LoadPage } from "./load/load-page.tsx";
import { isPanelOpen } from "./panel/panel-state.ts";
import { SettingsPanel } from "./panel/settings-panel.tsx";
import { Sidebar, newChat } from "./sidebar/sidebar.tsx";
import { isSidebarOpen, lastModel, prefersDark, theme } from "./state/preferences.ts";
import { page } from "./state/route.ts";
import { model, models, needsKey } from "./state/server.ts";
import { IconButton } from "./ui/button.tsx";
import { count } from "./ui/format.ts";
import { Icon } from "./ui/icons.tsx";
import { Menu } from "./ui/menu.tsx";
import { keys } from "./ui/platform.ts";
import { Toasts } from "./ui/toast.tsx";

const DIALOGS = { search: SearchDialog, help: HelpDialog, preferences: PreferencesDialog };

export function App(): JSX.Element {
  const isPanelShown = isPanelOpen.value && page.value === "chat";
  const Shown = shownDialog.value ? DIALOGS[shownDialog.value] : null;
  return (
    <div class={`app${isSidebarOpen.value ? " with-sidebar" : ""}${isPanelShown ? " with-panel" : ""}`}>
      <a class="skip" href="#main" onClick={skip}>
        To the content
      </a>
      {isSidebarOpen.value && <Sidebar />}
      {isSidebarOpen.value && <div class="shade" onClick={() => (isSidebarOpen.value = false)} />}
      <main id="main" tabIndex={-1}>
        <TopBar />
        {page.value === "load" ? <LoadPage /> : <ChatPage />}
      </main>
      {isPanelShown && <div class="shade panel-shade" onClick={() => (isPanelOpen.value = false)} />}
      {isPanelShown && <SettingsPanel />}
      {Shown && <Shown />}
      {needsKey.value && <KeyDialog />}
      <Toasts />
    </div>
  );
}

function skip(event: Event): void {
  event.preventDefault(); // the part behind # is a page here
  document.getElementById("main")?.focus();
}

function TopBar(): JSX.Element {
  return (
    <header class="top">
      {!isSidebarOpen.value && (
        <>
          <IconButton icon="sidebar" label="Show the sidebar" onClick={() => (isSidebarOpen.value = true)} />
          <IconButton icon="plus" label="New chat" onClick={newChat} />
        </>
      )}
      {page.value === "chat" && <ModelPicker />}
      <span class="grow" />
      <ThemeButton />
      {page.value === "chat" && (
        <IconButton
          icon="sliders"
          label="Chat settings"
          title={`Chat settings (${keys(",")})`}
          aria-expanded={isPanelOpen.value}
          aria-controls="panel"
          onClick={() => (isPanelOpen.value = !isPanelOpen.value)}
        />
      )}
    </header>
  );
}

function ThemeButton(): JSX.Element {
  const isDark = theme.value === "dark" || (theme.value === "system" && prefersDark.value);
  return (
    <IconButton
      icon={isDark ? "sun" : "moon"}
      label={isDark ? "Light theme" : "Dark theme"}
      onClick={() => (theme.value = isDark ? "light" : "dark")}
    />
  );
}

function ModelPicker(): JSX.Element {
  const name = model.value;
  if (name === null) return <span class="model-button muted">No model yet</span>;
  return (
    <Menu
      label={`Model: ${name}`}
      buttonClass="model-button"
      items={models.value.map(({ id, maxModelLen }) => ({
        label: id,
        ...(maxModelLen === null ? {} : { hint: `${count(maxModelLen)} tokens of context` }),
        isChosen: id === name,
        onChoose: () => (lastModel.value = id),
      }))}
    >
      <span>{shortName(name)}</span>
      <Icon name="chevron" size={16} />
    </Menu>
  );
}

/** Without the folder or the organisation. */
function shortName(id: string): string {
  return id.split("/").at(-1) ?? id;
}
